"""Budget: the time of a whole specialization, and what each stage may take of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

REPORT = 10.0
"""Seconds that are kept for the report and the export of the adapter."""
LEAST = 20.0
"""Seconds of a stage that trains, at least. With less time it is left out."""


class Budget:
    """Seconds for all stages together, and what is left of them.

    A stage gets its share of what is left when it begins, compared with the stages that follow: so what a stage leaves
    goes to those after it, and what it took too much is taken from them.

    Args:
        seconds: For everything. None: there is no limit, and each stage takes what its settings say.
        earlier_seconds: Seconds that earlier processes of the same run have spent.
        clock: Seconds on a clock that never goes back.
    """

    def __init__(
        self, seconds: float | None, *, earlier_seconds: float = 0.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.seconds = seconds
        self._clock, self._began = clock, clock() - earlier_seconds
        self._weights: dict[str, float] = {}
        self._needs: dict[str, float] = {}

    def divide(self, weights: Mapping[str, float]) -> None:
        """Divides the time among stages.

        Args:
            weights: The share of each stage, by its name, in their order. 0: it takes no time.
        """
        self._weights = dict(weights)

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
            self._weights[name] = 0.0
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
        names = list(self._weights)
        later = {name: self._weights[name] for name in names[names.index(now) :] if name != stage}
        needs = {name: seconds for name, seconds in self._needs.items() if later.get(name)}
        free = max(0.0, self.seconds_left - REPORT - sum(needs.values()))
        weight = self._weights[stage]
        sharing = weight + sum(weight for name, weight in later.items() if name not in needs)
        share = free * weight / sharing if sharing else 0.0
        own = min(self._needs.get(stage, 0.0), free)
        return max(share, own)

    def text(self) -> str:
        """What is left, in words. Empty: there is no limit."""
        left = self.seconds_left
        return "" if left is None else f"{_minutes(left)} of {_minutes(self.seconds or 0.0)} left"


def _minutes(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d} min"
