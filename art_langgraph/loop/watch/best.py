"""Best: the version of a run that is promoted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from art_langgraph.loop.evaluate import Evaluation, SuccessGain


@dataclass(frozen=True, slots=True)
class Best:
    """The version with the highest held-out success, of all that were evaluated. Of equal ones it is the earliest.

    The highest of several measurements is too high on average, because chance chose it too. `again` was not chosen, so
    that it is free of the chance within a scenario; of the choice of the scenarios it is not.

    Args:
        policy: Name of the policy, which means this version from now on.
        version: The version.
        evaluation: By which it was chosen.
        again: Its evaluation after the promotion, on the same scenarios. None: it failed, and a warning says why.
        gain: `evaluation` against the baseline. None: it is the baseline, or they have no scenario in common.
    """

    policy: str
    version: int
    evaluation: Evaluation
    again: Evaluation | None
    gain: SuccessGain | None

    def summary(self) -> dict[str, Any]:
        """The numbers as JSON."""
        return {
            "version": self.version,
            "evaluation": self.evaluation.summary(),
            "again": self.again and self.again.summary(),
            "gain": None if self.gain is None else {"mean": self.gain.mean, "interval": list(self.gain.interval)},
        }

    def __str__(self) -> str:
        gain = "it is the version that the run began with" if self.gain is None else f"{self.gain} over the baseline"
        if self.gain is not None and self.gain.interval[0] <= 0.0:
            gain += ", which may be chance"
        again = f"; scored by itself once more: {self.again.success_text}" if self.again else ""
        return (
            f"best version {self.policy}@{self.version}: held-out {self.evaluation.success_text}, {gain}{again}; "
            f"promoted: {self.policy!r} is {self.policy}@{self.version}"
        )
