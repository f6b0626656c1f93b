"""The results of checks."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class State(StrEnum):
    """How a check ended."""

    ok = "ok"
    warning = "warning"
    """It works, but not as well as it could, or not in each case."""
    failed = "failed"
    """It will not work."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    Args:
        subject: What was examined: `environment`, `serve`, `parse` or `train`.
        check: Name of the check.
        state: How it ended.
        text: What was found, with the values.
        remedy: What to do about it; empty if nothing is to be done.
    """

    subject: str
    check: str
    state: State
    text: str
    remedy: str = ""

    def as_json(self) -> dict[str, Any]:
        """The finding as JSON has it."""
        return {**asdict(self), "state": str(self.state)}


def worst(findings: list[Finding]) -> State:
    """The worst state among findings; `ok` without any."""
    order = list(State)
    return max((finding.state for finding in findings), key=order.index, default=State.ok)
