"""Connections that belong to the event loop they were opened in."""

from __future__ import annotations

import asyncio
from weakref import WeakKeyDictionary

import httpx


class LoopTransport(httpx.AsyncBaseTransport):
    """A pool of connections per event loop.

    LangChain shares one client between all models of a process, and a pool keeps connections of loops that have ended:
    the second `asyncio.run` of a script would meet them.
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
