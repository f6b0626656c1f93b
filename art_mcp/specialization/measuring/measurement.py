"""Measurement: the success of a version on each held-out set, and the headline."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, replace
from typing import Any

from art_langgraph.loop.evaluate import Evaluation
from art_mcp.scenarios.plan import HELD_OUT, MCPScenario
from art_mcp.specialization.measuring.paired_gain import PairedGain

HEADLINE = ("values", "phrasings")
"""The held-out sets whose mean success is the headline. The set of new combinations is reported apart."""


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
