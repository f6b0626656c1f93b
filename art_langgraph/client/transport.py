"""An httpx transport with a connection pool per event loop."""

from __future__ import annotations

import asyncio
from weakref import WeakKeyDictionary

import httpx


class LoopTransport(httpx.AsyncBaseTransport):
    """An httpx transport that keeps a connection pool for each event loop.

    All ChatART models of a process share a client. An ordinary pool would keep connections of event loops that have
    ended, and the second `asyncio.run` of a script would fail on them.
    """

    def __init__(self) -> None:
        self._pools: WeakKeyDictionary[asyncio.AbstractEventLoop, httpx.AsyncHTTPTransport] = WeakKeyDictionary()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        loop = asyncio.get_running_loop()
        pool = self._pools.get(loop)
        if pool is None:
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=128)
            pool = self._pools[loop] = httpx.AsyncHTTPTransport(limits=limits)
        return await pool.handle_async_request(request)

    async def aclose(self) -> None:
        if pool := self._pools.pop(asyncio.get_running_loop(), None):
            await pool.aclose()
