"""The success of a version on each held-out set, and whether it is better than another one: McNemar's exact test."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, replace
from typing import Any

from art_langgraph.loop.evaluate import Evaluation
from art_mcp.scenarios.plan import HELD_OUT, MCPScenario

HEADLINE = ("values", "phrasings")
"""The held-out sets whose mean success is the headline. The set of new combinations is reported apart."""


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


@dataclass(frozen=True, slots=True)
class Measurement:
    """How often a version solved the held-out scenarios, after a stage.

    Args:
        stage: "before", "prompted", "after_sft" or "after".
        evaluation: The runs on all held-out sets together.
    """

    stage: str
    evaluation: Evaluation

    @property
    def version(self) -> int:
        """Version of the policy that was measured."""
        version = self.evaluation.version
        assert isinstance(version, int)
        return version

    @property
    def sets(self) -> dict[str, Evaluation]:
        """An evaluation for each held-out set that was measured, in the order of HELD_OUT."""
        runs: dict[str, list[Any]] = {name: [] for name in HELD_OUT}
        for run in self.evaluation.trajectories:
            split = MCPScenario.of_scenario(run.scenario).plan.split
            if split in runs:
                runs[split].append(run)
        return {name: replace(self.evaluation, trajectories=of_set) for name, of_set in runs.items() if of_set}

    @property
    def on_headline(self) -> Evaluation:
        """The runs on the sets of the headline."""
        runs = [run for name, evaluation in self.sets.items() if name in HEADLINE for run in evaluation.trajectories]
        return replace(self.evaluation, trajectories=runs)

    @property
    def headline(self) -> float | None:
        """Mean of the success rates on new values and new phrasings, or that of the only one of them that there is.

        None: neither was measured.
        """
        rates = [evaluation.success_rate for name, evaluation in self.sets.items() if name in HEADLINE]
        known = [rate for rate in rates if rate is not None]
        return statistics.fmean(known) if known else None

    @property
    def headline_interval(self) -> tuple[float, float] | None:
        """95 % interval of the headline. None: there is no headline.

        It is made of the intervals of the sets: the squares of their arms are added (MOVER, Zou and Donner 2008).
        """
        sets = [
            evaluation
            for name, evaluation in self.sets.items()
            if name in HEADLINE and evaluation.success_rate is not None
        ]
        if (headline := self.headline) is None:
            return None
        arms = []
        for evaluation in sets:
            (low, high), rate = evaluation.success_interval, evaluation.success_rate or 0.0
            arms.append((rate - low, high - rate))
        below, above = (math.hypot(*side) / len(arms) for side in zip(*arms, strict=True))
        return max(0.0, headline - below), min(1.0, headline + above)

    def rates(self) -> dict[str, float | None]:
        """Success rates by set, and the headline. None where a set does not exist."""
        sets = self.sets
        rates: dict[str, float | None] = {name: sets[name].success_rate if name in sets else None for name in HELD_OUT}
        return {**rates, "headline": self.headline}

    def gain_over(self, other: Measurement) -> PairedGain | None:
        """What this version gained over another one on the scenarios of the headline that both were measured on."""
        return PairedGain.of(self.on_headline, other.on_headline)

    def summary(self) -> dict[str, Any]:
        """The numbers as JSON."""
        interval = self.headline_interval
        return {
            "stage": self.stage,
            "version": self.version,
            **self.rates(),
            "headline_interval": list(interval) if interval else None,
            "sets": {name: evaluation.summary() for name, evaluation in self.sets.items()},
        }

    def __str__(self) -> str:
        parts = []
        if (headline := self.headline) is not None and (interval := self.headline_interval) is not None:
            parts.append(f"headline {headline:.3f} (95 %: {interval[0]:.3f} to {interval[1]:.3f})")
        parts += [
            f"{name} {evaluation.success_rate or 0.0:.3f} of {evaluation.scenarios}"
            for name, evaluation in self.sets.items()
        ]
        if self.evaluation.failed:
            parts.append(f"{self.evaluation.failed} raised")
        if self.evaluation.unscored:
            parts.append(f"{self.evaluation.unscored} unscored")
        return ", ".join(parts) or str(self.evaluation)


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
