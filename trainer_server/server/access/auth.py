"""Who may ask: the Host header and the bearer token."""

from __future__ import annotations

import hmac
import ipaddress
import os
import secrets
from collections.abc import Iterable
from urllib.parse import quote, urlsplit

from starlette.datastructures import Headers
from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from trainer_server.gateway.errors import APIError
from trainer_server.process.files import write_atomic
from trainer_server.server.dashboard.sessions import LOGIN, Sessions
from trainer_server.wire import ConfigError, Home

OPEN = {"/health", "/ready", "/favicon.ico", LOGIN}
"""Routes that need no token. Without it they say whether the server is ready, and nothing else."""
_OPEN_BELOW = "/ui/static/"
"""Files of the dashboard: the same on every server."""


class KnownHosts:
    """Answers 400 to requests that name another host than this server's. Plain ASGI.

    A web page may let its own name point to this machine (DNS rebinding). A browser then lets the page talk to the
    server, and names the page's host in the Host header.

    Args:
        app: The application behind it.
        hosts: Names and addresses of this server. Those of the loopback interface, and the address at which a
            connection arrived, are known without.
    """

    def __init__(self, app: ASGIApp, hosts: Iterable[str]) -> None:
        self.app = app
        self._hosts = {"localhost", *(host.lower() for host in hosts)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given = Headers(scope=scope).get("Host", "")
        if self._known(given, scope.get("server")):
            await self.app(scope, receive, send)
            return
        name = _host(given)
        refusal = APIError(
            400,
            f"this server is not known as {given!r:.200}: use its address, or serve with --allowed-host "
            f"{name or 'NAME'} if that is its name",
            code="unknown_host",
            param="Host",
        )
        await refusal.response(scope["path"])(scope, receive, send)

    def _known(self, given: str, server: tuple[str, int | None] | None) -> bool:
        if (host := _host(given)) is None:
            return False
        if host in self._hosts:
            return True
        try:
            address = _address(host)
            return address.is_loopback or (server is not None and address == _address(server[0]))
        except ValueError:
            return False


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    address = ipaddress.ip_address(text)
    return getattr(address, "ipv4_mapped", None) or address  # a socket that takes both has addresses of IPv6 only


def _host(given: str) -> str | None:
    """The host in a Host header, without a port, in lower case; None if it is none."""
    try:
        return urlsplit(f"//{given}").hostname
    except ValueError:
        return None


class BearerAuth:
    """Answers 401 to requests without the token. Plain ASGI: streams and disconnects pass through untouched.

    The token is in the header `Authorization: Bearer …`, or in `x-api-key`, as Anthropic's clients send it. Open routes
    are let through without it; `authorized` says whether a request has it. A browser that was logged in has a cookie
    instead, which counts for the dashboard and the control API. A browser that was not is led to the login page.
    """

    def __init__(self, app: ASGIApp, token: str, sessions: Sessions) -> None:
        self.app = app
        self._token, self._sessions = token.encode(), sessions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given = headers.get("Authorization", "").removeprefix("Bearer ").strip() or headers.get("X-API-Key", "")
        method, path = scope["method"], scope["path"]
        holds = hmac.compare_digest(given.encode(), self._token)
        holds = holds or (not given and self._sessions.holds(method, path, headers))
        scope.setdefault("state", {})["authorized"] = holds
        if holds or path in OPEN or path.startswith(_OPEN_BELOW):
            await self.app(scope, receive, send)
            return
        if method == "GET" and not given and (path == "/" or path.startswith("/ui/")):
            asked = path + (f"?{query.decode('latin-1')}" if (query := scope.get("query_string")) else "")
            login = RedirectResponse(f"{LOGIN}?next={quote(asked)}", status_code=303)
            await login(scope, receive, send)
            return
        what = "the bearer token is wrong" if given else "the bearer token is missing"
        refusal = APIError(
            401,
            f"{what}: send `Authorization: Bearer <token>` (or `x-api-key: <token>`); the server keeps it in "
            "`<home>/token`",
            code="invalid_api_key",
        )
        await refusal.response(scope["path"])(scope, receive, send)


def authorized(scope: Scope) -> bool:
    """Whether a request that has passed BearerAuth carries the token."""
    return bool(scope.get("state", {}).get("authorized"))


def ensure_token(home: Home) -> str:
    """The bearer token under the home directory, generated (0600) on first start; `ART_API_KEY` overrides it."""
    if key := os.environ.get("ART_API_KEY"):
        return key
    if not home.token.exists():
        write_atomic(home.token, f"art-{secrets.token_urlsafe(32)}")
    token = home.token.read_text().strip()
    if not token:
        raise ConfigError(f"{home.token} is empty: delete it, and a new token is made")
    return token
