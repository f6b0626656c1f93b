"""HTTP clients that repeat requests while the trainer server is gone, and a connection pool per event loop."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import AsyncGenerator
from typing import Any

import httpx

from art_langgraph.client.outages import (
    AWAY_STATUSES,
    LOST_ERRORS,
    ServerAway,
    outages,
    raise_if_away,
    speaks_no_tls,
)
from art_langgraph.client.proxies import HTTP_LIBRARIES, AsyncProxyTransport, ProxyTransport

_IDLE = 128
"""Connections of an event loop to a server that may wait for their next request."""


class _Retries:
    """The attempts of one request.

    Args:
        url: Where the request goes.
        patience: Seconds for which it is repeated, from the beginning of an outage.
    """

    def __init__(self, url: httpx.URL, patience: float) -> None:
        self._url, self._patience = url, patience
        self._attempts, self._first_failure = 0, math.inf

    def pause(self, error: httpx.TransportError) -> float | httpx.Response:
        """Seconds to wait before the next attempt, after one that raised an error.

        Where the time is over: the answer by which the server refused the request. Without one, the error is raised.
        """
        if speaks_no_tls(error):  # no time mends the address
            raise error
        self._attempts += 1
        self._first_failure = min(self._first_failure, time.monotonic())
        pause = outages.pause(
            self._url, error, attempt=self._attempts, since=self._first_failure, patience=self._patience
        )
        if pause is not None:
            return pause
        if isinstance(error, ServerAway):
            return error.answer
        raise error


class PatientAsyncClient(httpx.AsyncClient):
    """An httpx client that sends a request again while its server is gone (`outages.Outages`).

    A request whose answer was cut off is sent again too: all requests to the trainer server may be repeated. So is a
    request that the server refuses because it stops or has no place (`ServerAway`); when the time is over, its refusal
    is returned. An answer that is streamed is not sent again once its first byte has arrived.

    Args:
        retry_for: Seconds for which requests are repeated, from the beginning of an outage.
        lost_errors: Errors after which a request is sent again.
        options: Those of httpx.
    """

    def __init__(
        self, retry_for: float, lost_errors: tuple[type[httpx.TransportError], ...] = LOST_ERRORS, **options: Any
    ) -> None:
        super().__init__(**{"transport": AsyncProxyTransport(), **options})
        self.retry_for, self._lost_errors = retry_for, lost_errors

    async def send(self, request: httpx.Request, **options: Any) -> httpx.Response:
        retries = _Retries(request.url, self.retry_for)
        while True:
            try:
                answer = await super().send(request, **options)
                if answer.status_code in AWAY_STATUSES:
                    await answer.aread()
                    raise_if_away(answer)
            except self._lost_errors as error:
                if isinstance(pause := retries.pause(error), httpx.Response):
                    return pause
                await asyncio.sleep(pause)
            else:
                outages.note_answer(request.url)
                return answer


class PatientClient(httpx.Client):
    """The same, without an event loop.

    Args:
        retry_for: Seconds for which requests are repeated, from the beginning of an outage.
        options: Those of httpx.
    """

    def __init__(self, retry_for: float, **options: Any) -> None:
        super().__init__(**{"transport": ProxyTransport(), **options})
        self.retry_for = retry_for

    def send(self, request: httpx.Request, **options: Any) -> httpx.Response:
        retries = _Retries(request.url, self.retry_for)
        while True:
            try:
                answer = super().send(request, **options)
                if answer.status_code in AWAY_STATUSES:
                    answer.read()
                    raise_if_away(answer)
            except LOST_ERRORS as error:
                if isinstance(pause := retries.pause(error), httpx.Response):
                    return pause
                time.sleep(pause)
            else:
                outages.note_answer(request.url)
                return answer


def keep_loops_apart(client: Any) -> None:
    """Gives each event loop connections of its own. A client with another transport than the library's is left alone.

    Args:
        client: An async client of one of HTTP_LIBRARIES.
    """
    kind = type(client._transport)
    library = kind.__module__.partition(".")[0]
    if kind.__name__ == "AsyncHTTPTransport" and library in HTTP_LIBRARIES:
        client._transport, client._mounts = LoopTransport(library), {}  # its transport goes by proxies itself


class LoopTransport(httpx.AsyncBaseTransport):
    """A transport of httpx that keeps a connection pool for each event loop, and closes it when the loop ends.

    All ChatART models of a process share a client. An ordinary pool would keep connections of event loops that have
    ended, and the second `asyncio.run` of a script would fail on them. Event loops of several threads may use it. Its
    pools go by proxies as AsyncProxyTransport does.

    Args:
        library: Where the pools are from, one of HTTP_LIBRARIES: that of the client. `openai` has clients of httpx2
            from its version 3 on.
    """

    def __init__(self, library: str = "httpx") -> None:
        self._library = library
        self._pools: dict[asyncio.AbstractEventLoop, tuple[AsyncProxyTransport, AsyncGenerator[None]]] = {}
        """By loop: its connections, and what closes them."""
        self._lock = threading.Lock()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        loop, guard = asyncio.get_running_loop(), None
        with self._lock:
            if loop not in self._pools:
                for other in [other for other in self._pools if other.is_closed()]:  # one that nobody shut down
                    del self._pools[other]
                guard = self._until_the_end_of(loop)
                self._pools[loop] = (AsyncProxyTransport(self._library, idle=_IDLE), guard)
            pool, _ = self._pools[loop]
        if guard:
            await anext(guard)
        return await pool.handle_async_request(request)

    async def aclose(self) -> None:
        """Closes the connections of the running event loop."""
        with self._lock:
            entry = self._pools.get(asyncio.get_running_loop())
        if entry:
            await entry[1].aclose()

    async def _until_the_end_of(self, loop: asyncio.AbstractEventLoop) -> AsyncGenerator[None]:
        """Closes the pool of a loop. A loop that ends closes the asynchronous generators that were begun in it."""
        try:
            yield
        finally:
            with self._lock:
                pool, _ = self._pools.pop(loop)
            await pool.aclose()
