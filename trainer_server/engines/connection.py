"""HTTP to one engine: requests, answers that are read whole or as they come, and what went wrong with them.

aiohttp speaks it: a request takes it about 0.1 ms of the processor where httpx takes 0.9 ms, and the gateway makes one
for each completion.
"""

from __future__ import annotations

import asyncio
import errno
import json
import socket
import ssl
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import httpx

from trainer_server.common import tracing
from trainer_server.process.files import caused_by

_CONNECT_TIMEOUT = 10.0
"""Seconds for a new connection."""
_IDLE_SECONDS = 2.0
"""Seconds for which an idle connection is kept. vLLM closes one that was idle for 5 s; a request that is sent in this
moment is lost."""
_TCP = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 30_000}
KEEPALIVE = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *((socket.IPPROTO_TCP, getattr(socket, name), value) for name, value in _TCP.items() if hasattr(socket, name)),
]
"""Socket options that detect when the other machine is gone: after 15 + 3 * 5 s on a quiet connection, or after
30,000 ms with unconfirmed bytes. A read timeout cannot detect it: an engine may send nothing until a generation ends.
Options that a platform lacks are left out."""
MOST_BYTES = 16 * 2**20
"""Bytes of an answer, where no other limit is set. The ids of a million tokens take 7 MiB."""
_NOT_REACHED = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.InvalidURL)


class RequestFailure(Exception):
    """A request without an answer, or with a part of one.

    Args:
        error: What happened.

    Attributes:
        reached: Whether the engine may have got the request.
        timed_out: Whether no answer came in time.
        out_of_files: Whether this process, or this machine, has too many files open for a connection.
    """

    def __init__(self, error: BaseException) -> None:
        super().__init__(f"{type(error).__name__}: {error}")  # aiohttp's repr has the request's headers, and so the key
        self.reached = not isinstance(error, _NOT_REACHED)
        self.timed_out = isinstance(error, TimeoutError)
        self.out_of_files = caused_by(error, errno.EMFILE, errno.ENFILE)


class Unreadable(RequestFailure):
    """An answer that is not read: it is larger than any answer to its request, or compressed.

    Args:
        why: What is wrong with it.
    """

    def __init__(self, why: str) -> None:
        super().__init__(ValueError(why))
        self.why = why


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer that was read whole.

    Args:
        status: Its HTTP status.
        content: Its body.
    """

    status: int
    content: bytes

    @property
    def text(self) -> str:
        """The body as text; bytes that are no UTF-8 are replaced."""
        return self.content.decode(errors="replace")


class AnswerStream:
    """An answer whose headers were received.

    Args:
        response: The answer.
        most_bytes: Size up to which its body is read.

    Attributes:
        status: Its HTTP status.
        most_bytes: As the argument.

    Raises:
        Unreadable: It is compressed, though it was not to be: a few bytes could become any number.
    """

    def __init__(self, response: aiohttp.ClientResponse, most_bytes: int = MOST_BYTES) -> None:
        self._response, self.most_bytes = response, most_bytes
        self.status = response.status
        if (encoding := response.headers.get("Content-Encoding", "identity").lower()) != "identity":
            raise Unreadable(
                f"the answer is compressed ({encoding:.40}) though `Accept-Encoding: identity` was sent: let what "
                "stands before the engine pass answers on as they are"
            )

    async def read(self) -> bytes:
        """The whole body.

        Raises:
            Unanswered: The connection broke, or the body is too large (Unreadable).
        """
        return b"".join([chunk async for chunk in self.chunks()])

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body as it comes.

        Raises:
            Unanswered: The connection broke, or the body is too large (Unreadable).
        """
        size = 0
        with _translate_errors():
            async for chunk in self._response.content.iter_any():
                size += len(chunk)
                if size > self.most_bytes:
                    most = f"{self.most_bytes / 2**20:.0f} MiB"
                    raise Unreadable(f"the answer has more than {most}, which no answer to this request has")
                yield chunk


class EngineConnection:
    """Connections to one engine, as many as there are requests at once.

    Args:
        url: Its root; or `unix:` and the path of its socket.
        api_key: Its key; None: it has none.
    """

    def __init__(self, url: str, api_key: str | None) -> None:
        self._socket = url.removeprefix("unix:") if url.startswith("unix:") else None
        self._root = "http://engine" if self._socket else url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Closes all connections. Later requests open new ones."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def request(
        self,
        method: str,
        path: str,
        *,
        timeout: float,
        body: Mapping[str, Any] | None = None,
        params: Mapping[str, str] | None = None,
    ) -> Answer:
        """Sends a request, and reads the answer.

        The limit is asyncio's. When aiohttp's total limit runs out in the moment in which the task is cancelled, it
        raises TimeoutError, and the task goes on.

        Args:
            method: GET or POST.
            path: Its path.
            timeout: Seconds until the whole answer is read.
            body: Its body, which is sent as JSON. None: it has none.
            params: Its query.

        Raises:
            Unanswered: There is no answer, or not in time, or one that is too large or compressed (Unreadable).
        """
        with _translate_errors():
            async with asyncio.timeout(timeout), self.stream(method, path, body=body, params=params) as answer:
                return Answer(answer.status, await answer.read())

    @asynccontextmanager
    async def stream(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        params: Mapping[str, str] | None = None,
        most_bytes: int = MOST_BYTES,
    ) -> AsyncIterator[AnswerStream]:
        """Sends a request, with the `traceparent` of the span that is current here, and waits for the answer's headers.

        Waits without a limit. Leaving the context before the body has ended closes the connection, which tells the
        engine to stop.

        Args:
            method: GET or POST.
            path: Path of the request, below the engine's root.
            body: Body of the request, which is sent as JSON. None: it has none.
            params: Query of the request. None: it has none.
            most_bytes: Size up to which the body of the answer is read.

        Raises:
            Unanswered: There is no answer, or a compressed one (Unreadable).
        """
        with _translate_errors():
            response = await self._open().request(
                method,
                self._root + path,
                data=None if body is None else _encode_body(body),
                params=params,
                headers={**tracing.headers(), **({} if body is None else {"Content-Type": "application/json"})},
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_TIMEOUT),  # see `ask`
                allow_redirects=False,
            )
        try:
            yield AnswerStream(response, most_bytes)
        finally:
            response.close()

    def _open(self) -> aiohttp.ClientSession:
        """The session, which belongs to the running event loop."""
        if self._session is None:
            connector = (
                aiohttp.UnixConnector(self._socket, limit=0, keepalive_timeout=_IDLE_SECONDS)
                if self._socket
                else aiohttp.TCPConnector(
                    limit=0, keepalive_timeout=_IDLE_SECONDS, socket_factory=_watched_socket, ssl=self._ssl_context()
                )
            )
            self._session = aiohttp.ClientSession(
                connector=connector,
                headers={**self._headers, "Accept-Encoding": "identity"},
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._session

    def _ssl_context(self) -> ssl.SSLContext | bool:
        """The certificates that all other connections of this project trust: certifi's, or those of SSL_CERT_FILE. To
        read them takes 50 ms, which a connection without TLS need not spend."""
        return httpx.create_ssl_context() if self._root.startswith("https:") else True


def _encode_body(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def _watched_socket(address: Any) -> socket.socket:
    """A socket that notices when the other machine is gone. address: an entry of getaddrinfo."""
    family, kind, protocol, *_ = address
    endpoint = socket.socket(family, kind, protocol)
    for option in KEEPALIVE:
        endpoint.setsockopt(*option)
    return endpoint


@contextmanager
def _translate_errors() -> Iterator[None]:
    """Turns errors of the connection into Unanswered."""
    try:
        yield
    except (aiohttp.ClientError, TimeoutError) as error:
        raise RequestFailure(error) from error
