"""Authentication: the Host header and the bearer token of a request."""

from __future__ import annotations

import ipaddress
import os
import secrets
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Protocol
from urllib.parse import quote, urlsplit

from starlette.datastructures import Headers
from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from trainer_server.common import Home
from trainer_server.gateway.errors import APIError
from trainer_server.process.files import write_atomic
from trainer_server.server.access.layers import Layer
from trainer_server.server.access.request_log import RequestLog
from trainer_server.server.access.scopes import LOGIN, set_token, token_of
from trainer_server.server.access.tokens import Keyring, Token
from trainer_server.wire import ConfigError

OPEN = {"/health", "/ready", "/favicon.ico", LOGIN}
"""Routes that need no token. Without it they say whether the server is ready, and nothing else."""
_OPEN_BELOW = "/ui/static/"
"""Files of the dashboard: the same on every server."""


class KnownHosts(Layer):
    """Answers 400 to requests that name another host than this server's.

    A web page may let its own name point to this machine (DNS rebinding). A browser then lets the page talk to the
    server, and names the page's host in the Host header.

    Args:
        app: The application behind it.
        hosts: Names and addresses of this server. Those of the loopback interface, and the address at which a
            connection arrived, are known without.
    """

    def __init__(self, app: ASGIApp, hosts: Iterable[str]) -> None:
        super().__init__(app)
        self._hosts = {"localhost", *(host.lower() for host in hosts)}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        header = Headers(scope=scope).get("Host", "")
        if not self._is_own(header, scope.get("server")):
            raise APIError(
                400,
                f"this server is not known as {header!r:.200}: use its address, or serve with --allowed-host "
                f"{_host(header) or 'NAME'} if that is its name",
                code="unknown_host",
                param="Host",
            )
        await self.app(scope, receive, send)

    def _is_own(self, header: str, server: tuple[str, int | None] | None) -> bool:
        if (host := _host(header)) is None:
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


def _host(header: str) -> str | None:
    """The host in a Host header, without a port, in lower case; None if it is none."""
    try:
        return urlsplit(f"//{header}").hostname
    except ValueError:
        return None


class Logins(Protocol):
    """The logins of browsers, which the dashboard has."""

    def token(self, method: str, path: str, headers: Headers) -> Token | None:
        """The token of the login in a request's cookie; None: there is none, or the request may not use it.

        Raises:
            ConfigError: The named tokens cannot be read.
        """
        ...


class BearerAuth(Layer):
    """Answers 401 to requests without a token that counts, and adds them to the audit log.

    The token is in the header `Authorization: Bearer …`, or in `x-api-key`, as Anthropic's clients send it. Open routes
    are let through without it; `authorized` says whether a request has it. A browser that was logged in has a cookie
    instead, which counts for the dashboard and the control API. A browser that was not is led to the login page.
    What a token may do is checked by its route; see scopes.py.

    Args:
        app: The application behind it.
        keys: The tokens.
        logins: The logins of browsers; None: there is no dashboard to log in to.
        requests: The audit log.
    """

    def __init__(self, app: ASGIApp, keys: Keyring, logins: Logins | None, requests: RequestLog) -> None:
        super().__init__(app)
        self._keys, self._logins, self._requests = keys, logins, requests

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        secret = secret_of(headers)
        method, path = scope["method"], scope["path"]
        is_open = path in OPEN or path.startswith(_OPEN_BELOW)
        try:
            if secret:
                token = self._keys.find(secret)
            else:
                token = self._logins.token(method, path, headers) if self._logins else None
        except ConfigError as error:
            if not is_open:
                raise APIError(503, str(error), code="tokens_unreadable") from None
            token = None
        valid_token = None if token is None or token.expired(time.time()) else token
        set_token(scope, valid_token)
        if is_open or valid_token is not None:
            await self.app(scope, receive, send)
        elif self._logins and method == "GET" and not secret and (path == "/" or path.startswith("/ui/")):
            page = path + (f"?{query.decode('latin-1')}" if (query := scope.get("query_string")) else "")
            login = RedirectResponse(f"{LOGIN}?next={quote(page)}", status_code=303)
            await login(scope, receive, send)
        else:
            await self._requests.add(scope, None, "access", "a request without a token that counts", 401)
            raise _refusal(secret, token)


def _refusal(secret: str, token: Token | None) -> APIError:
    if token is not None and token.expires is not None:
        day = datetime.fromtimestamp(token.expires, UTC)
        message = (
            f"the token {token.name!r} expired on {day:%Y-%m-%d %H:%M} UTC: whoever runs the server can revoke it and "
            "create another one (art-langgraph tokens create)"
        )
        return APIError(401, message, code="token_expired")
    what = "the bearer token is wrong, or was revoked" if secret else "the bearer token is missing"
    return APIError(
        401,
        f"{what}: send `Authorization: Bearer <token>` (or `x-api-key: <token>`; art-langgraph and TrainerClient take "
        "it from ART_API_KEY), with the server's own key, which it keeps in `<home>/token`, or a token of "
        "`art-langgraph tokens create`",
        code="invalid_api_key",
    )


def secret_of(headers: Headers) -> str:
    """The bearer token of a request, or what `x-api-key` has; empty: neither."""
    return headers.get("Authorization", "").removeprefix("Bearer ").strip() or headers.get("X-API-Key", "")


def authorized(scope: Scope) -> bool:
    """Whether a request that has passed BearerAuth carries a token that counts."""
    return token_of(scope) is not None


def ensure_token(home: Home) -> str:
    """The bearer token under the home directory, generated (0600) on first start; `ART_API_KEY` overrides it."""
    if key := os.environ.get("ART_API_KEY"):
        return key
    if not home.token.exists():
        write_atomic(home.token, f"art-{secrets.token_urlsafe(32)}")
    try:
        token = home.token.read_text().strip()
    except (OSError, ValueError) as error:
        raise ConfigError(f"{home.token} cannot be read ({error}): delete it, and a new token is made") from None
    if not token:
        raise ConfigError(f"{home.token} is empty: delete it, and a new token is made")
    if not (token.isascii() and token.isprintable()):
        raise ConfigError(f"{home.token} has characters that no header can have: delete it, and a new token is made")
    return token
