"""HTTP clients that repeat requests while the trainer server is gone, and a connection pool per event loop."""

from __future__ import annotations

import asyncio
import time
from typing import Any
from weakref import WeakKeyDictionary

import httpx

from art_langgraph.client.outages import LOST, outages


class PatientAsyncClient(httpx.AsyncClient):
    """An httpx client that sends a request again while its server is gone. See `outages.Outages`.

    A request whose answer was cut off is sent again too: all requests to the trainer server may be repeated. An answer
    that is streamed is not sent again once its first byte has arrived.

    Args:
        retry_for: Seconds for which requests are repeated, from the beginning of an outage.
        options: Those of httpx.
    """

    def __init__(self, retry_for: float, **options: Any) -> None:
        super().__init__(**options)
        self.retry_for = retry_for

    async def send(self, request: httpx.Request, **options: Any) -> httpx.Response:
        attempt = 0
        while True:
            attempt += 1
            try:
                answer = await super().send(request, **options)
            except LOST as error:
                pause = outages.pause(request.url, error, attempt=attempt, patience=self.retry_for)
                if pause is None:
                    raise
                await asyncio.sleep(pause)
            else:
                outages.answered(request.url)
                return answer


class PatientClient(httpx.Client):
    """The same, without an event loop.

    Args:
        retry_for: As that of PatientAsyncClient.
        options: Those of httpx.
    """

    def __init__(self, retry_for: float, **options: Any) -> None:
        super().__init__(**options)
        self.retry_for = retry_for

    def send(self, request: httpx.Request, **options: Any) -> httpx.Response:
        attempt = 0
        while True:
            attempt += 1
            try:
                answer = super().send(request, **options)
            except LOST as error:
                pause = outages.pause(request.url, error, attempt=attempt, patience=self.retry_for)
                if pause is None:
                    raise
                time.sleep(pause)
            else:
                outages.answered(request.url)
                return answer


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
