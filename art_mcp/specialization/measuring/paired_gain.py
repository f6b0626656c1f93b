"""Whether a version is better than another one on the same scenarios: McNemar's exact test."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from art_langgraph.loop.evaluate import Evaluation


@dataclass(frozen=True, slots=True)
class PairedGain:
    """What a version gained over an earlier one, on scenarios that both were measured on.

    Args:
        mean: Mean gain in success rate over the scenarios.
        interval: 95 % interval of the mean, for paired proportions (`Evaluation.gain_over`).
        better: Scenarios that only the later version solved.
        worse: Scenarios that only the earlier version solved.
        scenarios: Scenarios that both were measured on.
    """

    mean: float
    interval: tuple[float, float]
    better: int
    worse: int
    scenarios: int

    @classmethod
    def of(cls, later: Evaluation, earlier: Evaluation) -> PairedGain | None:
        """The gain of an evaluation over another one. None: they have no scored scenario in common.

        A scenario that was run several times counts as solved if most of its runs were.
        """
        gain = later.gain_over(earlier)
        if gain is None:
            return None
        before, after = _scenario_outcomes(earlier), _scenario_outcomes(later)
        pairs = [(before[scenario], after[scenario]) for scenario in after if scenario in before]
        better = sum(new and not old for old, new in pairs)
        worse = sum(old and not new for old, new in pairs)
        return cls(gain.mean, gain.interval, better, worse, len(pairs))

    @property
    def p(self) -> float:
        """Two-sided p-value of McNemar's exact test: of a fair coin, thrown for each scenario that differs."""
        return sign_test(self.better, self.worse)

    @property
    def significant(self) -> bool:
        """Whether the later version is better, and chance alone would seldom show as much (p < 0.05)."""
        return self.better > self.worse and self.p < 0.05

    def summary(self) -> dict[str, Any]:
        """The gain as JSON."""
        return {
            "mean": self.mean,
            "interval": list(self.interval),
            "p": self.p,
            "better": self.better,
            "worse": self.worse,
            "scenarios": self.scenarios,
            "significant": self.significant,
        }

    def __str__(self) -> str:
        low, high = self.interval
        return (
            f"{self.mean:+.3f} (95 %: {low:+.3f} to {high:+.3f}), better in {self.better} and worse in {self.worse} of "
            f"{self.scenarios} scenarios, p = {self.p:.3g}"
        )


def sign_test(better: int, worse: int) -> float:
    """Two-sided p-value of the exact binomial test with chance 1/2, from 0 to 1.

    Args:
        better: How many differences are in favour.
        worse: How many are against.
    """
    n, least = better + worse, min(better, worse)
    tail: float = sum(math.comb(n, k) for k in range(least + 1)) / 2**n
    return min(1.0, 2 * tail)


def _scenario_outcomes(evaluation: Evaluation) -> dict[str, bool]:
    """Whether most scored runs of a scenario solved it, by the id of the scenario."""
    runs: dict[str, list[bool]] = {}
    for run in evaluation.scored:
        runs.setdefault(run.scenario.id, []).append(evaluation.succeeded(run))
    return {id: 2 * sum(solved) > len(solved) for id, solved in runs.items()}
