"""Time that passes only where a program sleeps: simulations of hours take seconds, and are the same each time.

What is simulated sleeps by asyncio and reads `time.monotonic`. It waits for nothing real: for no thread, no process and
no socket, because time would pass meanwhile.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Coroutine
from typing import Any, TypeVar
from unittest import mock

Result = TypeVar("Result")


class _Clock(selectors.DefaultSelector):
    """Lets the time pass that an event loop would sleep."""

    def __init__(self) -> None:
        super().__init__()
        self._seconds = 0.0

    def now(self) -> float:
        """Seconds since the beginning."""
        return self._seconds

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("nothing will ever happen: the simulation waits for something real, or for nobody")
        events = super().select(0)
        if not events:
            self._seconds += max(0.0, timeout)
        return events


def simulate(program: Coroutine[Any, Any, Result]) -> Result:
    """Runs a program in virtual time, which begins at 0.

    Raises:
        RuntimeError: The program waits, and nothing sleeps.
    """
    clock = _Clock()
    with (
        mock.patch.object(time, "monotonic", clock.now),
        asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(clock)) as runner,
    ):
        return runner.run(program)
