"""Evaluates a version on scenarios. The runs are never trained on."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar

from art_langgraph.loop.failures import (
    TEXT_CALLS,
    RolloutsFailed,
    broke_off,
    check_rewards,
    runs_of,
    text_calls_of,
    versions_of,
)
from art_langgraph.loop.graphs import Graph, GraphSource
from art_langgraph.loop.options import keywords_of, values_of
from art_langgraph.loop.repeats import Answer, Repeats, ScenarioOutcome, Vote, final_answer
from art_langgraph.loop.rollout import GatherOptions, ScenarioLike, gather
from art_langgraph.rewards import RewardFunction
from art_langgraph.trajectory import Scenario, Trajectory
from trainer_server.common.intervals import wilson
from trainer_server.common.jsonl import read_jsonl, write_jsonl
from trainer_server.common.text_call import TEXT_CALL_REMEDY
from trainer_server.wire.text import quantity

_Z95 = 1.959963984540054
_Part = TypeVar("_Part")


def mean_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """95 % interval of a mean, Student's; None for fewer than two values."""
    if len(values) < 2:
        return None
    half = _t95(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return statistics.fmean(values) - half, statistics.fmean(values) + half


def _t95(freedom: float) -> float:
    """The 97.5 % quantile of Student's distribution: Fisher's expansion in the normal quantile (Abramowitz and Stegun
    26.7.5), which is right to a thousandth from 3 degrees of freedom on."""
    if freedom < 3:
        return math.tan(0.475 * math.pi) if freedom == 1 else 0.95 * math.sqrt(2 / (1 - 0.95**2))
    z, z2 = _Z95, _Z95**2
    terms = (
        (z2 + 1) / 4,
        ((5 * z2 + 16) * z2 + 3) / 96,
        (((3 * z2 + 19) * z2 + 17) * z2 - 15) / 384,
        ((((79 * z2 + 776) * z2 + 1482) * z2 - 1920) * z2 - 945) / 92160,
    )
    return z * (1 + sum(term / freedom**power for power, term in enumerate(terms, 1)))


def gain_interval(gains: Sequence[float]) -> tuple[float, float]:
    """95 % interval of a mean gain in success rate, of the same scenarios before and after.

    It is that of Bonett and Price (2012) for differences of paired proportions: normal, after one gain of 1 and one of
    -1 were added to the data. So a few scenarios that happen to differ are no gain: of 120 scenarios, six that are
    solved only after and none only before are the fewest whose interval is above 0, as in McNemar's exact test.

    Args:
        gains: The gain of each scenario, from -1 to 1.
    """
    sample = [*gains, 1.0, -1.0]
    mean = statistics.fmean(sample)
    half = _Z95 * math.sqrt(statistics.pvariance(sample, mean) / len(sample))
    return max(-1.0, mean - half), min(1.0, mean + half)


def rate_interval(rates: Sequence[float], trials: int) -> tuple[float, float]:
    """95 % interval of a mean success rate over scenarios, each of which may have been tried several times.

    It is Wilson's, for an effective number of independent trials: the number at which independent trials would have the
    variance that the rates of the scenarios have (Korn and Graubard 1998, without their correction for few scenarios).
    It is at least the number of scenarios and at most the number of trials. Where a scenario always has the same
    outcome, further trials of it narrow nothing; where all scenarios are alike, each trial counts.

    Args:
        rates: Success rate of each scenario, from 0 to 1.
        trials: How many trials all scenarios had together.

    Returns:
        The lower and the upper end, with the mean of the rates between them.
    """
    scenarios = len(rates)
    if scenarios == 0:
        return 0.0, 1.0
    rate = statistics.fmean(rates)
    effective = float(scenarios)
    if scenarios > 1 and 0.0 < rate < 1.0:
        variance = statistics.variance(rates) / scenarios
        effective = min(max(rate * (1 - rate) / variance, scenarios), trials) if variance else float(trials)
    low, high = wilson(rate * effective, effective)
    return min(rate, low), max(rate, high)


Success = Callable[[Trajectory], bool]
"""Whether a run that was scored solved its scenario."""


class SuccessGain(NamedTuple):
    """How much more often a version succeeds than another, on the same scenarios."""

    mean: float
    """Mean gain in success rate per scenario."""
    interval: tuple[float, float]
    """95 % interval of the mean; see `gain_interval`. Above 0: the version is better beyond chance."""

    def __str__(self) -> str:
        return f"{self.mean:+.3f} ({self.interval[0]:+.3f} to {self.interval[1]:+.3f})"


def full_reward(trajectory: Trajectory) -> bool:
    """Success for rewards from 0 to 1: a reward of 1."""
    return trajectory.reward is not None and trajectory.reward >= 1.0


def _reward(trajectory: Trajectory) -> float:
    return trajectory.reward or 0.0


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The runs of a version on scenarios: the mean of their rewards and the rate of successes, with 95 % intervals.

    Every scenario counts the same: mean and rate are those of its runs first, then those of the scenarios. An interval
    says how far the number may be from that of all scenarios of this kind, of which these are a random sample. So it is
    narrowed by more scenarios. More runs of the same scenario narrow it only as far as chance decides within a
    scenario; on an agent that always does the same in a scenario, they tell nothing new.

    A run that raised may be the agent's own failure. So it never counts as a success: with a reward, it enters `mean`
    and `success_rate`; without one, it enters `success_rate` alone, if the policy had answered in it. Otherwise a
    version whose runs crash would be measured by the runs that do not. Any other run without a reward enters neither:
    its reward function failed, or it raised before the policy answered, because the server was away, say.

    Args:
        trajectories: All runs, those that raised or have no reward included.
        version: The version that was asked for: a number, or numbers by policy. None: the one that the
            policy's name means.
        success: Whether a scored run solved its scenario. By default: its reward is at least 1.
        answer: What a run answered, for the majority. By default: its last text.
    """

    trajectories: list[Trajectory]
    version: int | Mapping[str, int] | None = None
    success: Success = full_reward
    answer: Answer = final_answer

    @property
    def scored(self) -> list[Trajectory]:
        """Runs that enter the success rate: those with a reward, and those that raised after the policy had answered.

        Where nothing scores the runs, there are none.
        """
        has_rewards = any(run.reward is not None or run.reward_error is not None for run in self.trajectories)
        return [run for run in self.trajectories if run.reward is not None or (has_rewards and broke_off(run))]

    @property
    def scenarios(self) -> int:
        """How many scenarios have a run that enters the success rate."""
        return len({trajectory.scenario.id for trajectory in self.scored})

    @property
    def rewards(self) -> list[float]:
        """Rewards of the runs that have one."""
        return [trajectory.reward for trajectory in self.trajectories if trajectory.reward is not None]

    @property
    def n(self) -> int:
        """How many runs enter the success rate."""
        return len(self.scored)

    @property
    def failed(self) -> int:
        """How many runs raised, whatever their reward."""
        return sum(trajectory.error is not None for trajectory in self.trajectories)

    @property
    def unscored(self) -> int:
        """How many runs enter nothing: they have no reward, and did not raise after the policy had answered."""
        return len(self.trajectories) - self.n

    @property
    def mean(self) -> float | None:
        """Mean reward over the scenarios; None where no run has a reward."""
        return self.mean_of(_reward)

    @property
    def interval(self) -> tuple[float, float] | None:
        """95 % interval of the mean: as `success_interval` for rewards of 0 and 1, else Student's.

        Student's is over the means of the scenarios. None: it needs two scenarios.
        """
        means, rewards = self._means(_reward, self._rewarded_runs), self.rewards
        return rate_interval(means, len(rewards)) if rewards and set(rewards) <= {0.0, 1.0} else mean_interval(means)

    @property
    def versions(self) -> dict[str, list[int]]:
        """The versions that answered, by policy: `{"agent": [3]}`."""
        return versions_of(self.trajectories)

    def succeeded(self, trajectory: Trajectory) -> bool:
        """Whether a run has a reward, did not raise, and meets `success`."""
        return trajectory.reward is not None and trajectory.error is None and self.success(trajectory)

    @property
    def successes(self) -> int:
        """How many runs succeeded."""
        return sum(map(self.succeeded, self.trajectories))

    @property
    def success_rate(self) -> float | None:
        """Mean over the scenarios of the share of successes among their `scored` runs; None where there are none."""
        return _mean(self._means(self.succeeded, self.scored))

    @property
    def success_interval(self) -> tuple[float, float]:
        """95 % interval of the success rate: Wilson's, with repeated runs of a scenario counted by `rate_interval`."""
        return rate_interval(self._means(self.succeeded, self.scored), self.n)

    @property
    def success_text(self) -> str:
        """The success rate with its interval, in words."""
        if (rate := self.success_rate) is None:
            return f"success unknown: none of {len(self.trajectories)} runs has a reward"
        low, high = self.success_interval
        return f"success {rate:.3f} ({low:.3f} to {high:.3f})"

    def by_scenario(self) -> list[ScenarioOutcome]:
        """What the `scored` runs of each scenario came to."""
        return [
            ScenarioOutcome(
                scenario,
                runs=len(runs),
                successes=sum(map(self.succeeded, runs)),
                rewards=[run.reward for run in runs if run.reward is not None],
                votes=[Vote(answer, self.succeeded(run)) for run in runs if (answer := self.answer(run)) is not None],
            )
            for scenario, runs in _by_scenario(lambda run: run, self.scored).items()
        ]

    @property
    def repeats(self) -> Repeats | None:
        """pass@k, best of k, the majority, and the variance within and between scenarios. None: a scenario has fewer
        than two `scored` runs."""
        return Repeats.of(self.by_scenario())

    def gain_over(self, other: Evaluation) -> SuccessGain | None:
        """How much more often this version succeeded than that of another evaluation, on the scenarios of both.

        Scenarios are compared with themselves, so that their difficulty does not widen the interval.

        Args:
            other: The evaluation to compare with.

        Returns:
            The gain; None where no scenario has a `scored` run in both.
        """
        before = _by_scenario(other.succeeded, other.scored)
        after = _by_scenario(self.succeeded, self.scored)
        gains = [
            statistics.fmean(after[scenario]) - statistics.fmean(before[scenario])
            for scenario in after
            if scenario in before
        ]
        return SuccessGain(statistics.fmean(gains), gain_interval(gains)) if gains else None

    def by(self, key: Callable[[Scenario], Iterable[Hashable]]) -> dict[Any, tuple[int, int]]:
        """(successes, `scored` runs) by facts of their scenarios, such as tools or difficulty.

        Args:
            key: The facts of a scenario. A run counts once under each.
        """
        successes: Counter[Any] = Counter()
        counts: Counter[Any] = Counter()
        for trajectory in self.scored:
            for fact in dict.fromkeys(key(trajectory.scenario)):
                counts[fact] += 1
                successes[fact] += self.succeeded(trajectory)
        try:
            order = sorted(counts)
        except TypeError:  # facts of several types
            order = sorted(counts, key=repr)
        return {fact: (successes[fact], counts[fact]) for fact in order}

    def mean_of(self, part: Callable[[Trajectory], float]) -> float | None:
        """Mean of a number: a part of the reward, seconds, tool calls.

        Args:
            part: The number of a run that has a reward.

        Returns:
            The mean over the scenarios of the means of their runs; None where no run has a reward.
        """
        return _mean(self._means(part, self._rewarded_runs))

    @property
    def _rewarded_runs(self) -> list[Trajectory]:
        return [trajectory for trajectory in self.trajectories if trajectory.reward is not None]

    @staticmethod
    def _means(part: Callable[[Trajectory], float], runs: Iterable[Trajectory]) -> list[float]:
        """Mean of a number of runs, for each scenario of theirs."""
        return list(map(statistics.fmean, _by_scenario(part, runs).values()))

    def summary(self) -> dict[str, Any]:
        """The numbers as JSON: version, n, scenarios, failed, unscored, mean, interval, success, success_interval; and
        `repeats` where each scenario has several runs."""
        repeats = self.repeats
        return {
            "version": dict(self.version) if isinstance(self.version, Mapping) else self.version,
            "n": self.n,
            "scenarios": self.scenarios,
            "failed": self.failed,
            "unscored": self.unscored,
            "mean": self.mean,
            "interval": self.interval and list(self.interval),
            "success": self.success_rate,
            "success_interval": list(self.success_interval),
            **({} if repeats is None else {"repeats": repeats.summary()}),
        }

    def save(self, path: str | Path) -> None:
        """Writes the trajectories to a JSONL file, which `load` reads."""
        write_jsonl(path, self.trajectories)

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        version: int | Mapping[str, int] | None = None,
        success: Success = full_reward,
        answer: Answer = final_answer,
    ) -> Self:
        """Reads the trajectories that `save` wrote.

        Args:
            path: The JSONL file.
            version: The version that was measured; the file does not say.
            success: Whether a scored run solved its scenario; by default a reward of at least 1.
            answer: What a run answered, for the majority; by default its last text.

        Raises:
            ConfigError: The file cannot be read, or a line of it is no trajectory.
        """
        return cls(list(read_jsonl(path, Trajectory.model_validate, what="trajectory")), version, success, answer)

    def __str__(self) -> str:
        if (rate := self.success_rate) is None:
            return f"none of {len(self.trajectories)} runs has a reward"
        low, high = self.success_interval
        mean = "" if self.mean is None else f", mean reward {self.mean:.3f}"
        others = f", {self.failed} raised" if self.failed else ""
        others += f", {self.unscored} unscored" if self.unscored else ""
        runs = f"{quantity(self.n, 'run')} of {quantity(self.scenarios, 'scenario')}{others}"
        repeats = "" if self.repeats is None else f", {self.repeats}"
        text_calls, answers = text_calls_of(self.trajectories)
        note = f"; {text_calls} of {answers} answers {TEXT_CALLS}. {TEXT_CALL_REMEDY}" if text_calls else ""
        return f"success {rate:.3f} (95 %: {low:.3f} to {high:.3f}){repeats}{mean}, {runs}{note}"


def _by_scenario(part: Callable[[Trajectory], _Part], runs: Iterable[Trajectory]) -> dict[str, list[_Part]]:
    """A part of each run, by the ids of the scenarios."""
    by_scenario: dict[str, list[_Part]] = {}
    for trajectory in runs:
        by_scenario.setdefault(trajectory.scenario.id, []).append(part(trajectory))
    return by_scenario


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None


@dataclass(frozen=True, kw_only=True)
class EvaluateArguments(GatherOptions):
    """Arguments of `evaluate`.

    Args:
        graph: A compiled graph, a function, or a factory that makes a graph for a scenario.
        scenarios: Tasks that the policy was not trained on.
        reward: Scores a run; None leaves the runs unscored.
        version: Version of the policies that the graph asks, for all of them or by name; None: the version that the
            graph names.
        n: Runs of each scenario. More scenarios tell more than more runs of the same ones; see `Evaluation`.
        success: Whether a scored run solved its scenario; by default a reward of at least 1.
        answer: What a run answered, as a value that is equal for equal answers, for the majority; by default its last
            text, without case and full stop.
    """

    graph: Graph | GraphSource = field(kw_only=False)
    scenarios: Sequence[ScenarioLike] = field(kw_only=False)
    reward: RewardFunction | None = field(default=None, kw_only=False)
    version: int | Mapping[str, int] | None = None
    n: int = 1
    success: Success = full_reward
    answer: Answer = final_answer
    temperature: float | None = 0.0


@keywords_of(EvaluateArguments)
async def evaluate(options: EvaluateArguments) -> Evaluation:
    """Runs a graph `n` times on each scenario with a fixed version and temperature, and scores the runs.

    The trajectories are marked as evaluation, and no training step takes them, whatever their temperature.

    Returns:
        The runs, with the mean of their rewards and the rate of successes.

    Raises:
        ConfigError: As `gather`.
        RolloutsFailed: As `gather`, or no run enters the success rate though a reward function was given.
        PinIgnored: As `gather`.
    """
    groups = await gather(
        options.graph,
        options.scenarios,
        options.n,
        options.reward,
        version=options.version,
        evaluation=True,
        **values_of(options, GatherOptions),
    )
    evaluation = Evaluation(runs_of(groups), options.version, options.success, options.answer)
    if options.reward is not None and evaluation.trajectories and not evaluation.scored:
        check_rewards(groups)
        raise RolloutsFailed(
            f"{len(evaluation.trajectories)} of {len(evaluation.trajectories)} runs have rewards of completions alone, "
            "and none that tells whether it succeeded: let the reward function return the run's reward too",
            trajectories=evaluation.trajectories,
        )
    return evaluation
