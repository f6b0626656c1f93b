"""Rewards made of rewards: weighted sums, and a judge for what a verifier could not decide."""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Mapping

from art_langgraph.rewards import UNDECIDED, GroupReward, NodeRewards, RewardFunction, regrouped, score_group
from art_langgraph.trajectory import Trajectory, TrajectoryGroup
from trainer_server.wire import ConfigError


def weighted(**parts: tuple[float, RewardFunction]) -> RewardFunction:
    """A reward function that is a weighted sum: `weighted(correct=(1.0, exact), brief=(0.2, brevity))`.

    The weighted parts are kept as metrics under their names; what a part gives as named parts is summed. A part that
    raises, decides nothing, or is not finite leaves the run unscored, with the part's name in `reward_error`: it never
    counts as 0. Raises ConfigError for no parts, and for a weight that is not finite.
    """
    _check(parts)

    async def reward(trajectory: Trajectory) -> dict[str, float]:
        found = {}
        for name, (weight, function) in parts.items():
            try:
                value = function(trajectory)
                value = await value if inspect.isawaitable(value) else value
                if value is None:
                    raise ValueError(UNDECIDED)
                if isinstance(value, NodeRewards):
                    raise TypeError("rewards by node cannot be part of a sum: blend inside of one function")
                total = math.fsum(value.values()) if isinstance(value, Mapping) else float(value)
                if not math.isfinite(total):
                    raise ValueError(f"the reward is {total}, not a finite number")
            except Exception as error:  # the user's code: named, and recorded by `score`
                raise RuntimeError(f"the part {name!r} failed: {type(error).__name__}: {error}") from error
            found[name] = weight * total
        return found

    return reward


def group_sum(**parts: tuple[float, GroupReward]) -> GroupReward:
    """Adds weighted group rewards to the reward that each run has: `group_sum(style=(0.3, Ruler("provider/name")))`.

    A run without a reward function begins at 0; one whose reward function failed stays unscored, and so does a run
    that a part could not score. The weighted parts are kept as metrics under their names. Raises ConfigError.
    """
    _check(parts)

    async def reward(group: TrajectoryGroup) -> TrajectoryGroup:
        scored = await asyncio.gather(*(score_group(group, function) for _, function in parts.values()))
        rewards: list[float | None] = []
        errors: list[str | None] = []
        metrics: list[dict[str, float]] = []
        metadata: list[dict[str, object]] = []
        for at, one in enumerate(group.trajectories):
            mine = {name: found.trajectories[at] for name, found in zip(parts, scored, strict=True)}
            failed = [f"the part {name!r}: {run.reward_error}" for name, run in mine.items() if run.reward is None]
            error = one.reward_error or next(iter(failed), None)
            sums = {name: parts[name][0] * run.reward for name, run in mine.items() if run.reward is not None}
            rewards.append(None if error else math.fsum([one.reward or 0.0, *sums.values()]))
            errors.append(error)
            metrics.append({**{k: v for run in mine.values() for k, v in run.metrics.items()}, **sums})
            metadata.append({k: v for run in mine.values() for k, v in run.metadata.items()})
        return regrouped(group, rewards, errors=errors, metrics=metrics, metadata=metadata)

    return reward


def when_undecided(judge: GroupReward) -> GroupReward:
    """Verifier first: only runs for which the reward function returned None get their reward from a judge.

    A group in which all is decided costs no call. In others the judge sees all runs, which it needs to compare, and
    what was decided stays. A run whose reward function failed is not undecided: it stays unscored.
    """

    async def reward(group: TrajectoryGroup) -> TrajectoryGroup:
        open_ones = [one.reward is None and one.reward_error in (None, UNDECIDED) for one in group.trajectories]
        if not any(open_ones):
            return group
        judged = await score_group(group, judge)
        mixed = zip(open_ones, judged.trajectories, group.trajectories, strict=True)
        return group.model_copy(update={"trajectories": [new if chosen else old for chosen, new, old in mixed]})

    return reward


def _check(parts: Mapping[str, tuple[float, object]]) -> None:
    if not parts:
        raise ConfigError("a sum of rewards needs at least one part: name=(weight, reward)")
    for name, (weight, _) in parts.items():
        if not math.isfinite(weight):
            raise ConfigError(f"the weight of {name!r} is {weight}, not a finite number")
