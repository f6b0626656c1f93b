"""Requests that only the elected server answers, on their way there: a load balancer may send any request anywhere."""

from __future__ import annotations

import asyncio
import ipaddress
import re
import secrets
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from pathlib import Path
from urllib.parse import urlsplit

import httpx
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trainer_server.engines.connection import KEEPALIVE
from trainer_server.gateway.errors import APIError
from trainer_server.ledger.base import LedgerError
from trainer_server.server.access.bodies import next_part
from trainer_server.server.access.layer import Layer
from trainer_server.server.access.scopes import answered_anywhere

_PATIENCE = 30.0
"""Seconds that a request waits for a server to be elected. A killed one is succeeded within a few."""
_POLL_INTERVAL = 0.2
"""Seconds between two looks who is elected."""
_KEPT = 2**20
"""Bytes of a body up to which a request is sent again when the elected server dies. The client repeats larger ones."""
_HOPS = {
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "host",
}
"""Headers of one connection, which are not passed on."""
_TRAINING = re.compile(r"/api/policies/[^/]+/(?:steps|sft)")
"""Addresses at which a request that is sent twice makes two jobs, unless it has an idempotency key."""


class ToLeader(Layer):
    """Passes requests on to the elected server, while this one is not, but for those that every server answers.

    A request is sent again when the elected server dies before it answers: all requests to a trainer server may be
    repeated. Those that queue a job get an idempotency key for it.

    It stands behind `BearerAuth`, so that nothing of a request without a token is read or passed on. What the token may
    do, and the body, are checked by the elected server.

    Args:
        app: The application behind it.
        leads: Whether this server is elected.
        leader: The URL of the elected server; None: it is not known. It may block, and raise LedgerError.
        certificate: That of all servers of the fleet, if they speak HTTPS.
        patience: Seconds that a request waits for a server to be elected.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        leads: Callable[[], bool],
        leader: Callable[[], str | None],
        certificate: Path | None = None,
        patience: float = _PATIENCE,
    ) -> None:
        super().__init__(app)
        self._leads, self._leader, self._patience = leads, leader, patience
        self._certificate = certificate
        self._client: httpx.AsyncClient | None = None

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._leads() or answered_anywhere(scope["method"], scope["path"]):
            await self.app(scope, receive, send)
            return
        _give_key(scope)
        body = await _small_body(scope, receive)
        if body is None:
            await self._pass_on(scope, receive, send, None)
            return
        work = asyncio.create_task(self._pass_on(scope, _again(body, receive), send, body))
        watch = asyncio.create_task(_wait_disconnect(receive))
        try:
            await asyncio.wait({work, watch}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
        finally:
            for task in (work, watch):
                task.cancel()
            await asyncio.gather(work, watch, return_exceptions=True)

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send, body: bytes | None) -> None:
        deadline = time.monotonic() + self._patience
        why = "no server is elected that trains"
        while time.monotonic() < deadline:
            if self._leads():  # since just now
                await self.app(scope, receive, send)
                return
            try:
                url = await asyncio.to_thread(self._leader)
                if url is not None:
                    return await self._relay(url, scope, receive, send, body)
            except LedgerError as error:
                why = str(error)
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                why = f"the server that trains cannot be reached at {url}: {error}"
            except httpx.TransportError as error:
                why = f"the server that trains went away: {error or type(error).__name__}"
                if body is None:
                    break
            await asyncio.sleep(_POLL_INTERVAL)
        raise APIError(503, f"{why}. Ask again", code="no_leader", retry_after=2)

    async def _relay(self, url: str, scope: Scope, receive: Receive, send: Send, body: bytes | None) -> None:
        """Passes an answer on.

        Raises:
            httpx.TransportError: The elected server went away before its answer began.
            ConnectionError: It went away later.
        """
        query = scope.get("query_string", b"")
        path = (scope.get("raw_path") or scope["path"].encode()) + (b"?" + query if query else b"")
        headers = [(name, value) for name, value in scope["headers"] if name.decode("latin-1").lower() not in _HOPS]
        if (named := Headers(scope=scope).get("Host", "")) and not _is_address(named):
            # The name that the fleet has. An address is that of one server.
            headers.append((b"host", named.encode("latin-1")))
        request = httpx.Request(
            scope["method"],
            httpx.URL(url).copy_with(raw_path=path),
            headers=headers,
            content=body if body is not None else _parts(receive),
        )
        if self._client is None:
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=20)
            transport = httpx.AsyncHTTPTransport(
                verify=_trusting(self._certificate), limits=limits, trust_env=False, socket_options=KEEPALIVE
            )
            timeout = httpx.Timeout(None, connect=5.0)
            self._client = httpx.AsyncClient(transport=transport, timeout=timeout, trust_env=False)
        response = await self._client.send(request, stream=True)
        async with aclosing(response):
            raw = [(name.lower(), value) for name, value in response.headers.raw]
            kept = [(name, value) for name, value in raw if name.decode("latin-1") not in _HOPS]
            await send({"type": "http.response.start", "status": response.status_code, "headers": kept})
            try:
                async for part in response.aiter_raw():
                    await send({"type": "http.response.body", "body": part, "more_body": True})
            except httpx.TransportError as error:  # the connection is closed in the middle, which clients notice
                raise ConnectionError(f"the server that trains went away during its answer: {error}") from error
            await send({"type": "http.response.body", "body": b""})


def _give_key(scope: Scope) -> None:
    """Gives a request that queues a job an idempotency key, unless its headers have one; a key in its body counts more.

    So the next server finds the job that was queued before the last one died. The scope is changed, not copied: layers
    in front of this one read from it what later ones note.
    """
    if scope["method"] != "POST" or not _TRAINING.fullmatch(scope["path"]):
        return
    if not Headers(scope=scope).get("Idempotency-Key"):  # an empty one is none
        others = [(name, value) for name, value in scope["headers"] if name.lower() != b"idempotency-key"]
        scope["headers"] = [*others, (b"idempotency-key", secrets.token_hex(16).encode())]


async def _small_body(scope: Scope, receive: Receive) -> bytes | None:
    """The body of a request; None: it is large, or its size is not known, and nothing of it was read."""
    headers = Headers(scope=scope)
    length = headers.get("Content-Length", "0" if "Transfer-Encoding" not in headers else "")
    if not length.isdigit() or int(length) > _KEPT:
        return None
    return b"".join([part async for part in _parts(receive)])


async def _parts(receive: Receive) -> AsyncIterator[bytes]:
    more, before, began = True, 0, time.monotonic()
    while more:
        message = await next_part(receive, before, began)
        if message["type"] == "http.disconnect":
            raise asyncio.CancelledError
        part, more = message.get("body", b""), message.get("more_body", False)
        before += len(part)
        yield part


def _again(body: bytes, receive: Receive) -> Receive:
    """Gives a body that was read, and then waits: whether the client leaves is watched elsewhere."""
    given = False

    async def again() -> Message:
        nonlocal given
        if not given:
            given = True
            return {"type": "http.request", "body": body, "more_body": False}
        return await asyncio.Future[Message]()

    return again


async def _wait_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(urlsplit(f"//{host}").hostname or "")
    except ValueError:
        return False
    return True


def _trusting(certificate: Path | None) -> ssl.SSLContext | bool:
    """Trusts the fleet's own certificate and no other one, whatever name it has: servers are reached by address."""
    if certificate is None:
        return True
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    text = certificate.read_text()
    end = "-----END CERTIFICATE-----"
    first = text[text.index("-----BEGIN CERTIFICATE-----") : text.index(end) + len(end)]
    context.load_verify_locations(cadata=first)
    return context
