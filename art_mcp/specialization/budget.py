"""Budget: the time of a whole specialization, and what each stage may take of it."""

from __future__ import annotations

import time
from collections.abc import Callable

WEIGHTS = {
    "scenarios": 6.0,
    "before": 1.5,
    "prompted": 2.0,
    "warm start": 46.0,
    "after_sft": 6.0,
    "difficulty": 6.0,
    "rl": 22.0,
    "selection": 4.0,
    "after": 6.0,
}
"""The stages in their order, and their shares of the time. A stage gets its share of what is left when it begins,
compared with the stages that follow: so what a stage leaves goes to those after it, and what it took too much is taken
from them."""

REPORT = 10.0
"""Seconds that are kept for the report and the export of the adapter."""


class Budget:
    """Seconds for all stages together, and what is left of them.

    Args:
        seconds: For everything. None: there is no limit, and each stage takes what its settings say.
        earlier_seconds: Seconds that earlier processes of the same run have spent.
        skipped_stages: Stages that will not be done.
        clock: Seconds on a clock that never goes back.
    """

    def __init__(
        self,
        seconds: float | None,
        *,
        earlier_seconds: float = 0.0,
        skipped_stages: frozenset[str] = frozenset(),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.seconds = seconds
        self._clock, self._began = clock, clock() - earlier_seconds
        self._open = {name: weight for name, weight in WEIGHTS.items() if name not in skipped_stages}
        self._needs: dict[str, float] = {}

    @property
    def seconds_spent(self) -> float:
        """Seconds since the beginning, those of earlier processes included."""
        return self._clock() - self._began

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the end. None: there is no limit."""
        return None if self.seconds is None else max(0.0, self.seconds - self.seconds_spent)

    def reserve(self, stage: str, seconds: float) -> None:
        """Keeps seconds for a stage that comes later, whatever the stages before it take.

        Args:
            stage: The stage, such as the last measurement.
            seconds: What it will take, as far as is known.
        """
        self._needs[stage] = seconds

    def leave_out(self, *stages: str) -> None:
        """Gives the shares of stages that come later to the others.

        Args:
            stages: Stages that will not be done, or take no time.
        """
        for name in stages:
            self._open.pop(name, None)
            self._needs.pop(name, None)

    def allows(self, stage: str) -> float | None:
        """Seconds that a stage may take if it begins now. None: there is no limit.

        Args:
            stage: The stage. All stages before it have ended.
        """
        return self.foresees(stage, now=stage)

    def foresees(self, stage: str, now: str) -> float | None:
        """Seconds that a stage gets, if those before it take what they may. None: there is no limit.

        Args:
            stage: The stage.
            now: The stage that begins now. All stages before it have ended.
        """
        if self.seconds_left is None:
            return None
        self.leave_out(*list(WEIGHTS)[: list(WEIGHTS).index(now)])
        later = {name: weight for name, weight in self._open.items() if name != stage}
        needs = {name: seconds for name, seconds in self._needs.items() if name in later}
        free = max(0.0, self.seconds_left - REPORT - sum(needs.values()))
        sharing = self._open.get(stage, 0.0) + sum(weight for name, weight in later.items() if name not in needs)
        share = free * self._open.get(stage, 0.0) / sharing if sharing else 0.0
        own = min(self._needs.get(stage, 0.0), free)
        return max(share, own)

    def text(self) -> str:
        """What is left, in words. Empty: there is no limit."""
        return (
            ""
            if self.seconds_left is None
            else f"{_minutes(self.seconds_left)} of {_minutes(self.seconds or 0.0)} left"
        )


def _minutes(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d} min"
