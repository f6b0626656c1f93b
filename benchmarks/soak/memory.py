"""What memory a process needs while it works."""

from __future__ import annotations

import asyncio
import statistics
import time

import psutil

WARM_UP = 60.0
"""Seconds after which the memory should not grow any more; a fifth of a shorter run."""


class Memory:
    """Resident memory of a process, looked at once a second.

    Args:
        pid: The process.
        seconds: How long the run takes.
    """

    def __init__(self, pid: int, seconds: float) -> None:
        self._process, self._seconds = psutil.Process(pid), seconds
        self._samples: list[tuple[float, float]] = []

    async def watch(self) -> None:
        """Looks until it is cancelled."""
        started = time.monotonic()
        while True:
            self._samples.append((time.monotonic() - started, self._process.memory_info().rss / 2**20))
            await asyncio.sleep(min(1.0, self._seconds / 100))

    def growth(self) -> dict[str, float]:
        """MiB after the warm-up and at the end, medians of a tenth of the run each, and the growth between them."""
        warm, tenth = min(WARM_UP, self._seconds / 5), self._seconds / 10
        first = statistics.median(mib for at, mib in self._samples if warm <= at <= warm + tenth)
        last = statistics.median(mib for at, mib in self._samples if at >= self._seconds - tenth)
        return {"rss_warm_mib": first, "rss_end_mib": last, "rss_growth": last / first - 1}
