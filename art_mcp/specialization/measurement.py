"""Success on held-out sets: measured within a time, compared on the same scenarios by McNemar's exact test."""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

from art_langgraph.loop.evaluate import Evaluation, evaluate
from art_langgraph.loop.rollout import Graph
from art_langgraph.trajectory import Trajectory
from art_mcp.scenarios.plan import HELD_OUT, MEASURED, MCPScenario
from art_mcp.specialization.settings import RunSettings
from art_mcp.specialization.verify import solved, verify

HEADLINE = ("values", "phrasings")
"""The held-out sets whose mean success is the headline. New combinations and foreign requests are reported
apart."""
LEAST = 12
"""Scenarios of a measurement at least, however little time there is."""
_TIMEOUT_SHARE = 0.2
"""What runs at the same time may make each other take of their time limit. The cost that is known may be that of a
version which calls fewer tools, and some runs take twice as long as others."""
_FEWEST_AT_ONCE = 4
"""Runs at the same time at least: fewer would leave the engine idle."""


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
        """An evaluation for each held-out set that was measured, in the order of MEASURED."""
        runs: dict[str, list[Any]] = {name: [] for name in MEASURED}
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
        numbers = [rate for rate in rates if rate is not None]
        return statistics.fmean(numbers) if numbers else None

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
        """Success rates by set, and the headline. None where a set does not exist. Without foreign requests there is no
        entry for them."""
        rates: dict[str, float | None] = dict.fromkeys(HELD_OUT)
        rates |= {name: evaluation.success_rate for name, evaluation in self.sets.items()}
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
    return {id: 2 * sum(successes) > len(successes) for id, successes in runs.items()}


@dataclass(slots=True)
class Measurer:
    """Measures versions of a policy at temperature 0, one run of each scenario.

    Args:
        runs: How the agent is run.
        progress: Whether to show progress bars on a terminal.
        cost: Seconds for each scenario, as the last measurement took. None: not known yet.
    """

    runs: RunSettings
    progress: bool
    cost: float | None = None

    async def measure(
        self,
        agent: Graph,
        scenarios: Sequence[MCPScenario],
        version: int,
        seconds: float | None = None,
        on_part: Callable[[int, float], None] = lambda runs, seconds: None,
    ) -> Evaluation:
        """Measures a version on the first scenarios, as many as can be done in the time, and LEAST at least.

        While the cost of a scenario is not known, the first runs are as many as run at the same time. What they took
        tells how many more there is time for.

        Args:
            agent: Asks the policy.
            scenarios: In the order in which they are taken.
            version: Version of the policy.
            seconds: The time. None: all scenarios are measured.
            on_part: Called with the number of runs so far and the seconds that they took.

        Raises:
            RolloutsFailed: Every run failed before the policy answered, or none has a reward.
        """
        start, trajectories = time.monotonic(), list[Trajectory]()
        while len(trajectories) < len(scenarios):
            part = self._part(len(trajectories), len(scenarios), seconds, time.monotonic() - start)
            if not part:
                break
            evaluation = await self._evaluate(agent, scenarios[len(trajectories) : len(trajectories) + part], version)
            trajectories += evaluation.trajectories
            took = time.monotonic() - start
            self.cost = took / len(trajectories)
            on_part(len(trajectories), took)
        return Evaluation(trajectories, version, solved)

    def _part(self, done_count: int, count: int, seconds: float | None, seconds_spent: float) -> int:
        """How many scenarios to run next; 0: there is no time for more."""
        rest = count - done_count
        if seconds is None:
            return rest
        if self.cost is None:
            return min(rest, max(LEAST, self.runs.max_concurrency))
        fitting = int((seconds - seconds_spent) / self.cost)
        if not done_count:
            return min(rest, max(LEAST, fitting))
        return min(rest, fitting) if fitting >= LEAST else 0

    @property
    def concurrency(self) -> int:
        """Runs at the same time: as many as the settings allow, but so few that no run exceeds its time limit because
        of the others, as far as their cost is known."""
        most = self.runs.max_concurrency
        if not self.cost:
            return most
        return max(min(most, _FEWEST_AT_ONCE), min(most, int(_TIMEOUT_SHARE * self.runs.timeout / self.cost)))

    async def _evaluate(self, agent: Graph, scenarios: Sequence[MCPScenario], version: int) -> Evaluation:
        return await evaluate(
            agent,
            scenarios,
            verify(),
            version=version,
            success=solved,
            max_concurrency=self.concurrency,
            timeout=self.runs.timeout,
            progress=self.progress and f"held out, version {version}",
        )


def interleave_sets(sets: Mapping[str, Sequence[MCPScenario]], seed: int) -> list[MCPScenario]:
    """All held-out scenarios in an order of which every beginning has about as many of each set.

    Args:
        sets: The held-out sets.
        seed: Seed of the order within each set.
    """
    orders = [
        random.Random(f"{seed}-{name}").sample(list(scenarios), len(scenarios)) for name, scenarios in sets.items()
    ]
    return [scenario for row in zip_longest(*orders) for scenario in row if scenario is not None]
