"""How many chat requests are worked on at once: the others stand in line, and those beyond the line are refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from trainer_server.gateway.errors import APIError

RETRY_AFTER = 5
"""Seconds after which a refused client is told to ask again."""


class Admission:
    """Places for chat requests.

    Without a bound, a burst of requests opens more files (connections) than the process may have, and then every part
    of the server fails.

    Args:
        running: Requests that engines answer at once. Each has a connection to its client and one to its engine.
        waiting: Requests that stand in line. Each has a connection to its client.

    Attributes:
        refused: Requests that were refused since the start of the server.
    """

    def __init__(self, running: int, waiting: int) -> None:
        self._places = asyncio.Semaphore(running)
        self._limit, self._admitted = running + waiting, 0
        self.refused = 0

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """A place at the engines, for the duration of one request. Waits in line for it, first come, first served.

        Raises:
            APIError: 429, the line is full.
        """
        if self._admitted >= self._limit:
            self.refused += 1
            message = (
                f"{self._admitted} requests are under way, as many as this server takes: ask again in {RETRY_AFTER} s, "
                "or raise the server's limit of open files (ulimit -n)"
            )
            raise APIError(429, message, code="too_many_requests", retry_after=RETRY_AFTER)
        self._admitted += 1
        try:
            async with self._places:
                yield
        finally:
            self._admitted -= 1
