"""What the runs of a scenario came to, by version, and how likely its next group is to teach something."""

from __future__ import annotations

import math
import random
import statistics
from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence

from art_langgraph.trajectory import Trajectory, TrajectoryGroup

Outcome = tuple[Hashable, ...]
"""All rewards of a run. Runs of a scenario teach something if and only if their outcomes differ."""

UNSCORED: Outcome = ("unscored",)
"""The outcome of a run without a reward, which is compared with no other run."""

_PRIOR = 0.5
"""How many runs each outcome counts before there was any: Jeffreys' prior."""
_FORGOTTEN = 0.01
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
            if weight < _FORGOTTEN:
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
    unscored, alphas = _alphas(weights)
    total = unscored + sum(alphas)

    def same(alpha: float) -> float:
        """E[pⁿ] for a probability p with this parameter: a quotient of rising factorials."""
        if alpha <= 0:
            return 0.0
        return math.exp(math.lgamma(alpha + n) - math.lgamma(alpha) - math.lgamma(total + n) + math.lgamma(total))

    none = same(unscored)
    return 1.0 - none - sum(same(alpha + unscored) - none for alpha in alphas)


def drawn_chance(weights: dict[Outcome, float], n: int, rng: random.Random) -> float:
    """The same probability for one draw of p from the posterior: Thompson sampling.

    Args:
        weights: Weighted number of runs, by outcome.
        n: Runs of a group.
        rng: Source of randomness.
    """
    unscored, alphas = _alphas(weights)
    parts = [rng.gammavariate(alpha, 1.0) for alpha in alphas]
    silent = rng.gammavariate(unscored, 1.0) if unscored > 0 else 0.0
    total = (silent + sum(parts)) or 1.0
    none = (silent / total) ** n
    return 1.0 - none - sum(((part + silent) / total) ** n - none for part in parts)


def _alphas(weights: dict[Outcome, float]) -> tuple[float, Sequence[float]]:
    """Parameters of the posterior: of runs without a reward, and of each rewarded outcome, unseen ones included."""
    seen = [weight + _PRIOR for outcome, weight in weights.items() if outcome != UNSCORED]
    return weights.get(UNSCORED, 0.0), [*seen, *[_PRIOR] * max(1, 2 - len(seen))]
