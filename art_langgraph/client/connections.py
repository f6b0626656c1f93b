"""Connections of an async HTTP client that may have any number of them.

The pools of httpx look at each of their connections whenever a request begins or ends, so that each of 512 requests at
once costs 512 looks; and above `max_keepalive_connections` they close a connection after each request. Here both take
the same time however many there are: what is idle lies on a stack, and all else belongs to its request.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import AsyncIterator
from importlib import import_module
from typing import Any

_LOOK = 1.0
"""Seconds between two looks for connections that have waited too long. A look asks the system about a socket."""
_Key = tuple[bytes, bytes, int]
"""Scheme, host and port of a server."""


def unlimited_transport(library: Any, idle: int, **options: Any) -> Any:
    """A transport with as many connections as there are requests at once.

    Args:
        library: httpx or httpx2.
        idle: Connections to a server that may wait for their next request.
        options: Those of its AsyncHTTPTransport, without `limits`.
    """
    transport = library.AsyncHTTPTransport(**options)
    transport._pool = _Connections(transport._pool, idle)
    return transport


class _Connections:
    """What httpx takes for a pool of httpcore.

    Args:
        pool: Makes the connections, and holds none.
        idle: See `unlimited_transport`.
    """

    def __init__(self, pool: Any, idle: int) -> None:
        self._pool, self._most_idle = pool, idle
        self._library: Any = import_module(type(pool).__module__.partition(".")[0])
        self._next_look = 0.0
        """When those that have waited longest are looked at again, by `time.monotonic`."""
        self._idle: defaultdict[_Key, deque[Any]] = defaultdict(deque)
        """By server; the connection on the right was used last."""

    async def handle_async_request(self, request: Any) -> Any:
        """Sends a request. Its connection is idle again when the answer was read or closed."""
        origin = request.url.origin
        while True:
            connection = await self._take(origin)
            try:
                answer = await connection.handle_async_request(request)
                break
            except self._library.ConnectionNotAvailable:  # closed meanwhile
                continue
            except BaseException:
                if not connection.is_closed():  # cancelled before the request was begun
                    await connection.aclose()
                raise
        stream = _Stream(answer.stream, self, connection, origin)
        return self._library.Response(
            answer.status, headers=answer.headers, content=stream, extensions=answer.extensions
        )

    async def aclose(self) -> None:
        """Closes what is idle."""
        idle, self._idle = self._idle, defaultdict(deque)
        for connections in idle.values():
            for connection in connections:
                await connection.aclose()

    async def _take(self, origin: Any) -> Any:
        idle = self._idle[_key(origin)]
        while idle:
            connection = idle.pop()
            if not connection.has_expired():  # nor has the server closed it
                return connection
            await connection.aclose()
        return self._pool.create_connection(origin)

    async def put_back(self, connection: Any, origin: Any) -> None:
        """Keeps a connection whose answer is over, unless it is closed. Closes those that have waited too long."""
        idle = self._idle[_key(origin)]
        if connection.is_idle():
            idle.append(connection)
        closing = [idle.popleft() for _ in range(len(idle) - self._most_idle)]
        if time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + _LOOK
            for connections in self._idle.values():
                while connections and connections[0].has_expired():
                    closing.append(connections.popleft())
        for each in closing:
            await each.aclose()


def _key(origin: Any) -> _Key:
    return origin.scheme, origin.host, origin.port


class _Stream:
    """The body of an answer."""

    def __init__(self, stream: Any, connections: _Connections, connection: Any, origin: Any) -> None:
        self._stream, self._connections, self._connection, self._origin = stream, connections, connection, origin
        self._closed = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for part in self._stream:
                yield part
        except BaseException:
            await self.aclose()
            raise

    async def aclose(self) -> None:
        if not self._closed:
            self._closed = True
            await self._stream.aclose()
            await self._connections.put_back(self._connection, self._origin)
