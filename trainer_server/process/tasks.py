"""Tasks that must run for as long as the server does: an error that nobody expected is logged, shown, and outlived."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

log = logging.getLogger("trainer_server")

_PAUSE = 1.0
"""Seconds until a round is tried again after it failed."""


class PeriodicTask:
    """A task that does the same work again and again, and does not end because a round of it fails.

    Args:
        name: What it does, for messages.
        work: One round.
        pause: Seconds until the next round after one that failed.

    Attributes:
        failure: What the last round failed of; None where it did not.
    """

    def __init__(self, name: str, work: Callable[[], Awaitable[object]], *, pause: float = _PAUSE) -> None:
        self._name, self._work, self._pause = name, work, pause
        self._task: asyncio.Task[None] | None = None
        self.failure: str | None = None

    @property
    def begun(self) -> bool:
        """Whether it was started."""
        return self._task is not None

    def start(self) -> None:
        """Begins with the first round."""
        self._task = asyncio.create_task(self._run(), name=self._name)

    async def stop(self) -> None:
        """Ends the round that is under way. Does nothing to a task that was never started."""
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            try:
                await self._work()
                self.failure = None
            except asyncio.CancelledError as error:
                if self._stopping():
                    raise
                await self._note_failure(error)  # something that the round waited for was cancelled
            except Exception as error:  # the edge of a task: logged, shown by /health, and tried again
                await self._note_failure(error)

    @staticmethod
    def _stopping() -> bool:
        task = asyncio.current_task()
        return task is not None and task.cancelling() > 0

    async def _note_failure(self, error: BaseException) -> None:
        failure = f"{self._name}: {type(error).__name__}: {error}"
        if failure != self.failure:  # the same failure, round after round, is logged once
            log.error("%s failed; it is tried again every %g s", self._name, self._pause, exc_info=error)
        self.failure = failure
        await asyncio.sleep(self._pause)
