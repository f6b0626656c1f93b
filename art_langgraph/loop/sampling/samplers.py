"""Which scenarios a step gets: `Sampler`, what chooses all equally often, and what chooses those that teach most."""

from __future__ import annotations

import math
import random
import statistics
from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol

from art_langgraph.trajectory import Scenario, Trajectory, TrajectoryGroup
from trainer_server.wire import ConfigError


class Sampler(Protocol):
    """Chooses the scenarios of each training step: `train(sampler=…)` takes any object that has these methods.

    `UniformSampler` and `LearnableSampler` are included.
    """

    def choose(
        self, scenarios: Sequence[Scenario], count: int, *, step: int, taken: Collection[str] = ()
    ) -> Sequence[Scenario]:
        """Chooses scenarios for a step. It is called once for each step, and again when some are to be replaced.

        Args:
            scenarios: All scenarios of the training.
            count: How many to choose.
            step: Number of the step, from 1 on.
            taken: Ids of scenarios that the step has already. Not empty: others are wanted, in place of those whose
                runs all got the same reward.

        Returns:
            Some of `scenarios`: exactly `count` where nothing is taken, at most `count` otherwise.
        """
        ...

    def learn(self, groups: Sequence[TrajectoryGroup]) -> None:
        """Takes note of runs at the temperature of the training, with their rewards and versions.

        `train` calls it before the first step with the runs that were measured or are in its store, and then after the
        rollouts of each step. The same run may come twice.

        Args:
            groups: Runs by scenario.
        """
        ...


@dataclass(frozen=True, slots=True)
class UniformSampler:
    """Passes over the scenarios, each taken once in a pass. Step i has the same scenarios in every run of a seed.

    Args:
        seed: Seeds the order of each pass, and of the scenarios that replace others.
        shuffle: Whether passes are in random order. False: in the order given.
    """

    seed: int = 0
    shuffle: bool = True

    def choose(
        self, scenarios: Sequence[Scenario], count: int, *, step: int, taken: Collection[str] = ()
    ) -> list[Scenario]:
        """The next scenarios of the pass; in place of others, any that the step has not taken.

        Args:
            scenarios: All scenarios of the training.
            count: How many to choose.
            step: Number of the step, from 1 on. It seeds the choice, together with `seed`.
            taken: Ids of scenarios that the step has already. Not empty: others are wanted in their place.
        """
        if taken:
            order = random.Random(f"{self.seed}-spare-{step}").sample(scenarios, len(scenarios))
            return [scenario for scenario in order if scenario.id not in taken][:count]
        choice: list[Scenario] = []
        for position in range((step - 1) * count, step * count):
            epoch, at = divmod(position, len(scenarios))
            if self.shuffle:
                at = random.Random(f"{self.seed}-{epoch}").sample(range(len(scenarios)), len(scenarios))[at]
            choice.append(scenarios[at])
        return choice

    def learn(self, groups: Sequence[TrajectoryGroup]) -> None:
        """Does nothing: what was measured does not change the order."""


Outcome = tuple[Hashable, ...]
"""All rewards of a run. Runs of a scenario teach something if and only if their outcomes differ."""

UNSCORED: Outcome = ("unscored",)
"""The outcome of a run without a reward, which is compared with no other run."""

_PRIOR = 0.5
"""How many runs each outcome counts before there was any: Jeffreys' prior."""
_LEAST_WEIGHT = 0.01
"""Runs that count less than this are forgotten."""
_DIGITS = 9
"""Rewards that are the same to so many decimals are equal, as in the trainer."""


def outcomes_of(group: TrajectoryGroup) -> list[Outcome]:
    """The outcome of each run of a group, in their order.

    A judge's scores say something beside the others of their judgement only. So they are taken as their distance from
    the mean of their judgement, which is 0 for all runs that the judge found equally good.
    """
    rewards: defaultdict[str, list[float]] = defaultdict(list)
    for run in group.trajectories:
        if run.judgement is not None and run.reward is not None:
            rewards[run.judgement].append(run.reward)
    means = {judgement: statistics.fmean(scores) for judgement, scores in rewards.items()}
    return [_outcome(run, means.get(run.judgement or "", 0.0)) for run in group.trajectories]


def _outcome(run: Trajectory, mean: float) -> Outcome:
    if not run.scored:
        return UNSCORED
    whole = () if run.reward is None else (("run", round(run.reward - mean, _DIGITS)),)
    nodes = [("node", name, round(reward, _DIGITS)) for name, reward in sorted((run.node_rewards or {}).items())]
    calls = {("/".join(call.path), round(call.reward, _DIGITS)) for call in run.completions if call.reward is not None}
    if len(calls) > len({path for path, _ in calls}):  # completions of one node are compared within the run, too
        return ("differs", run.id)
    return (*whole, *nodes, *sorted(calls))


class Outcomes:
    """What the runs of one scenario came to. Older versions count less, because the policy has moved since."""

    def __init__(self) -> None:
        self._counts: defaultdict[int, Counter[Outcome]] = defaultdict(Counter)
        """By version."""
        self.last = -math.inf
        """When the newest run began, as Unix time."""

    def add(self, version: int, outcome: Outcome, start_time: float) -> None:
        """Counts a run.

        Args:
            version: The version that answered.
            outcome: What the run came to.
            start_time: When it began, as Unix time.
        """
        self._counts[version][outcome] += 1
        self.last = max(self.last, start_time)

    def weights(self, newest: int, half_life: float) -> dict[Outcome, float]:
        """How many runs came to each outcome. Runs of a version that is `half_life` versions old count half.

        The order in which runs were added makes no difference, to the last bit: a training that continues makes the
        same choices as one without a break.

        Args:
            newest: The policy's newest version.
            half_life: In versions.
        """
        weights: defaultdict[Outcome, float] = defaultdict(float)
        for version in sorted(self._counts):
            weight = 0.5 ** (max(newest - version, 0) / half_life)
            if weight < _LEAST_WEIGHT:
                continue
            for outcome, count in self._counts[version].items():
                weights[outcome] += weight * count
        return dict(sorted(weights.items(), key=lambda item: repr(item[0])))


def chance(weights: dict[Outcome, float], n: int) -> float:
    """The probability, 0 to 1, that the rewards of n runs differ, expected under the posterior.

    The outcomes of a scenario have unknown probabilities p with a Dirichlet posterior: every outcome that was seen
    counts its runs and `_PRIOR`, and an outcome that was not seen counts `_PRIOR`. n runs come to the same with
    probability Σ pⁿ. Runs without a reward agree with all others.

    Args:
        weights: Runs by outcome, as `Outcomes.weights` counts them.
        n: Runs of a group.
    """
    alpha_unscored, alphas = _alphas(weights)
    total = alpha_unscored + sum(alphas)

    def same(alpha: float) -> float:
        """E[pⁿ] for a probability p with this parameter: a quotient of rising factorials."""
        if alpha <= 0:
            return 0.0
        return math.exp(math.lgamma(alpha + n) - math.lgamma(alpha) - math.lgamma(total + n) + math.lgamma(total))

    none = same(alpha_unscored)
    return 1.0 - none - sum(same(alpha + alpha_unscored) - none for alpha in alphas)


def drawn_chance(weights: dict[Outcome, float], n: int, rng: random.Random) -> float:
    """The same probability for one draw of p from the posterior: Thompson sampling.

    Args:
        weights: Weighted number of runs, by outcome.
        n: Runs of a group.
        rng: Source of randomness.
    """
    alpha_unscored, alphas = _alphas(weights)
    parts = [rng.gammavariate(alpha, 1.0) for alpha in alphas]
    silent = rng.gammavariate(alpha_unscored, 1.0) if alpha_unscored > 0 else 0.0
    total = (silent + sum(parts)) or 1.0
    none = (silent / total) ** n
    return 1.0 - none - sum(((part + silent) / total) ** n - none for part in parts)


def _alphas(weights: dict[Outcome, float]) -> tuple[float, Sequence[float]]:
    """Parameters of the posterior: of runs without a reward, and of each rewarded outcome, unseen ones included."""
    outcome_alphas = [weight + _PRIOR for outcome, weight in weights.items() if outcome != UNSCORED]
    return weights.get(UNSCORED, 0.0), [*outcome_alphas, *[_PRIOR] * max(1, 2 - len(outcome_alphas))]


class LearnableSampler:
    """Chooses the scenarios whose next group most likely teaches something: whose rewards will differ.

    It counts what the runs of each scenario came to, draws a probability of each outcome from what that leaves possible
    (Thompson sampling), and takes the scenarios with the highest probability of unequal rewards. A scenario that was
    never tried leaves all possible. A scenario that is always or never solved is chosen again when its runs have lost
    their weight, because the policy has moved since, or because it waited longest.

    With the same rewards, the same seed gives the same choices, also where a training continues from a store. The
    rewards of a run follow from what was sampled, so two runs of a training with the same seed part after the first
    step.

    Args:
        policy: The policy that is trained. Its versions tell how old a run is.
        n: Runs of a group.
        seed: Seeds the draws, together with the step and the scenario.
        half_life: Runs of a version count half when the policy is so many versions ahead.
        exploration: Share of the choices, 0 to 1, that goes to the scenarios that waited longest. So every one of S
            scenarios is run within S / (exploration · groups_per_step) steps.

    Raises:
        ConfigError: A number is out of its range.
    """

    def __init__(
        self, policy: str, *, n: int = 8, seed: int = 0, half_life: float = 10.0, exploration: float = 0.1
    ) -> None:
        if n < 1 or not half_life > 0 or not 0 <= exploration <= 1:
            raise ConfigError(
                f"n={n} must be at least 1, half_life={half_life} above 0, exploration={exploration} from 0 to 1"
            )
        self.policy, self.n, self.seed, self.half_life, self.exploration = policy, n, seed, half_life, exploration
        self._outcomes: defaultdict[str, Outcomes] = defaultdict(Outcomes)
        self._known = set[str]()
        """Ids of the runs that were counted."""
        self._newest = 0
        """The newest version that answered a run."""

    def choose(
        self, scenarios: Sequence[Scenario], count: int, *, step: int, taken: Collection[str] = ()
    ) -> list[Scenario]:
        """The scenarios with the highest drawn probability, and those that waited longest.

        Args:
            scenarios: All scenarios of the training.
            count: How many to choose.
            step: Number of the step, from 1 on. It seeds the choice, together with `seed`.
            taken: Ids of scenarios that the step has already. Not empty: others are wanted in their place.

        Raises:
            ConfigError: Fewer scenarios than `count` have an id of their own.
        """
        by_id = {scenario.id: scenario for scenario in scenarios}
        if not taken and len(by_id) < count:
            raise ConfigError(
                f"{len(by_id)} of {len(scenarios)} scenarios have an id of their own, fewer than {count} for a step: "
                "scenarios with the same input and metadata are the same; give them an id, or take fewer groups"
            )
        rest = [scenario_id for scenario_id in by_id if scenario_id not in taken]
        draws = {scenario_id: random.Random(f"{self.seed}-{step}-{scenario_id}") for scenario_id in rest}
        tie = {scenario_id: rng.random() for scenario_id, rng in draws.items()}
        chances = {
            scenario_id: drawn_chance(self._weights(scenario_id), self.n, rng) for scenario_id, rng in draws.items()
        }
        share = count * self.exploration
        turns = 0 if taken else math.floor(step * share) - math.floor((step - 1) * share)
        longest = sorted(rest, key=lambda scenario_id: (self._last(scenario_id), tie[scenario_id]))[:turns]
        best = sorted(set(rest) - set(longest), key=lambda scenario_id: (-chances[scenario_id], tie[scenario_id]))
        return [by_id[scenario_id] for scenario_id in (longest + best)[:count]]

    def learn(self, groups: Sequence[TrajectoryGroup]) -> None:
        """Counts what runs came to. A run in which the policy did not answer counts as one of the newest version."""
        runs = [run for group in groups for run in group.trajectories]
        self._newest = max([self._newest, *(max(run.versions.get(self.policy, [0])) for run in runs)])
        for group in groups:
            for run, outcome in zip(group.trajectories, outcomes_of(group), strict=True):
                if run.id not in self._known:
                    self._known.add(run.id)
                    version = max(run.versions.get(self.policy, [self._newest]))
                    self._outcomes[group.scenario.id].add(version, outcome, run.started)

    def chance(self, scenario: Scenario) -> float:
        """The probability, 0 to 1, that the rewards of the scenario's next group differ, by the runs until now."""
        return chance(self._weights(scenario.id), self.n)

    def _weights(self, scenario_id: str) -> dict[Outcome, float]:
        outcomes = self._outcomes.get(scenario_id)
        return outcomes.weights(self._newest, self.half_life) if outcomes else {}

    def _last(self, scenario_id: str) -> float:
        outcomes = self._outcomes.get(scenario_id)
        return outcomes.last if outcomes else -math.inf
