"""How many chat requests are worked on at once: the others stand in line, and those beyond the line are refused."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

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
        most: Requests that are taken at once, those in line included.
        refused: Requests that were refused since the start of the server.
        running: Requests at engines.
        by_policy: Requests at engines and in line, by policy; None: the base model.
    """

    def __init__(self, running: int, waiting: int) -> None:
        self._places = asyncio.Semaphore(running)
        self.most, self._admitted = running + waiting, 0
        self.refusal_count = self.running = 0
        self.by_policy: Counter[str | None] = Counter()

    @property
    def under_way(self) -> int:
        """Requests at engines and in line."""
        return self._admitted

    @contextmanager
    def admit(self, policy: str | None = None) -> Iterator[None]:
        """Counts one request while the context is open, in line or at an engine.

        Args:
            policy: Which is asked; None: the base model.

        Raises:
            APIError: 429, the line is full.
        """
        if self._admitted >= self.most:
            self.refusal_count += 1
            message = (
                f"{self._admitted} requests are under way, as many as this server takes: ask again in {RETRY_AFTER} s, "
                "or raise the server's limit of open files (ulimit -n)"
            )
            raise APIError(429, message, code="too_many_requests", retry_after=RETRY_AFTER)
        self._admitted += 1
        self.by_policy[policy] += 1
        try:
            yield
        finally:
            self._admitted -= 1
            self.by_policy[policy] -= 1
            if not self.by_policy[policy]:
                del self.by_policy[policy]

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """A place at an engine while the context is open. Waits in line for it, first come, first served."""
        async with self._places:
            self.running += 1
            try:
                yield
            finally:
                self.running -= 1
