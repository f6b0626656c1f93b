"""Alarm: something in a training run that a user should act upon."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Alarm:
    """A finding about the last steps of a run.

    Args:
        name: What it is, such as `entropy_collapse`.
        since: The step at which it began. It is logged at that step, and not again until it has ended.
        evidence: The numbers that it was found by.
        remedy: What to do.
    """

    name: str
    since: int
    evidence: str
    remedy: str

    def summary(self) -> dict[str, Any]:
        """The alarm as JSON."""
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.name}: {self.evidence}. {self.remedy}"
