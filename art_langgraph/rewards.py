"""Reward functions of single runs and of groups: their types, how they are called, and weighted sums of them."""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
import traceback
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from art_langgraph.trajectory import Trajectory, TrajectoryGroup
from trainer_server.wire import ConfigError, reward_problem

log = logging.getLogger("art_langgraph")


class NodeRewards(dict[str, float]):
    """Rewards by node: `NodeRewards(planner=1.0, **{"worker/*": 0.2})`.

    Keys are names of nodes, or shell patterns for their paths. A completion is trained with the reward of its node and
    compared with the completions of the same node; those of other nodes are not trained. Where several patterns name a
    completion, the first one counts: `NodeRewards(planner=1.0, **{"*": 0.2})` gives 0.2 to all nodes but the planner.
    The sum is the trajectory's reward. A reward function can also reward a single completion: it sets
    `completion.reward`.
    """


Parts = float | Mapping[str, float]
"""What a reward function returns: a number, named parts whose sum is the reward and which become metrics, or
`NodeRewards`."""
RewardFunction = Callable[[Trajectory], Parts | Awaitable[Parts | None] | None]
"""The reward of a run. Or None, where the function only sets `completion.reward`, or cannot decide: see
`when_undecided`."""
GroupReward = Callable[[TrajectoryGroup], TrajectoryGroup | Awaitable[TrajectoryGroup]]
"""Scores the runs of a scenario together: takes a group, returns it with rewards. `Ruler` is a group reward."""
UNDECIDED = "the reward function returned None: it could not decide, or lacks a return"
"""`reward_error` of a run for which a reward function returned None."""


async def score(trajectory: Trajectory, reward: RewardFunction) -> None:
    """Calls a reward function on a trajectory, and sets its `reward` and `metrics`.

    All earlier rewards of the trajectory are removed first, those by node and of single completions included. A
    function that raises, or gives something that is no finite number or larger than `MOST_REWARD`, leaves no reward and
    says why in `reward_error`; such a trajectory is never trained on. A function that returns None after it set
    `completion.reward` has decided: those completions are trained.
    """
    _remove_rewards(trajectory)
    try:
        value = reward(trajectory)
        if inspect.isawaitable(value):
            value = await value
        parts = {str(k): _number(v) for k, v in value.items()} if isinstance(value, Mapping) else {}
        total = math.fsum(parts.values()) if isinstance(value, Mapping) else 0.0 if value is None else _number(value)
        own = {at: float(call.reward) for at, call in enumerate(trajectory.completions) if call.reward is not None}
    except Exception as error:  # the user's code, at the edge of a run: recorded, and the run is kept
        _remove_rewards(trajectory, f"{type(error).__name__}: {error}{_where(error)}")
        return
    if wrong := next(filter(None, map(reward_problem, [total, *parts.values(), *own.values()])), None):
        _remove_rewards(trajectory, wrong)
        return
    for at, reward_of_call in own.items():
        trajectory.completions[at].reward = reward_of_call
    if value is None:
        trajectory.reward_error = None if own else UNDECIDED
        return
    if isinstance(value, NodeRewards):
        trajectory.node_rewards = parts
    trajectory.reward = total
    trajectory.metrics.update(parts)


def _number(value: Any) -> float:
    """What a reward function returned, as a number. Raises TypeError or ValueError, with what it may return."""
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        may = "a reward is a number, a dict of named numbers, NodeRewards, or None"
        raise type(error)(f"{error}: {may}") from error


def _where(error: Exception) -> str:
    """The line of the reward function that raised, as the end of a message. Empty: it was not reached."""
    for frame in traceback.extract_tb(error.__traceback__):
        if frame.filename != __file__:
            return f" ({Path(frame.filename).name}, line {frame.lineno}, in {frame.name})"
    return ""


def check_callable(*rewards: RewardFunction | GroupReward | None) -> None:
    """Raises ConfigError for a reward that is no function. None is no reward."""
    for reward in rewards:
        if reward is not None and not callable(reward):
            raise ConfigError(f"the reward {reward!r:.80} is no function: give one that takes a run, or its group")


def _remove_rewards(trajectory: Trajectory, why: str | None = None) -> None:
    """Removes all rewards of a trajectory. why: becomes its `reward_error`."""
    trajectory.reward = trajectory.node_rewards = trajectory.reward_reason = trajectory.judgement = None
    trajectory.reward_error, trajectory.independent_reward_error = why, None
    for call in trajectory.completions:
        call.reward = None


async def score_group(group: TrajectoryGroup, reward: GroupReward) -> TrajectoryGroup:
    """Calls a group reward on a group.

    When the function raises, loses runs, or gives a reward that `score` would refuse, the whole group stays unscored,
    with the reason in each `reward_error`. Rewards that the function gives are of one judgement: they are compared with
    one another only, because a score that compares runs says nothing beside the scores of other runs.

    The function may set rewards in place: it gets a copy, so that the runs of the group keep the rewards that they
    have.

    Args:
        group: The runs of a scenario.
        reward: The group reward.

    Returns:
        The scored group.
    """
    copy = _own_rewards(group)
    try:
        result = reward(copy)
        if inspect.isawaitable(result):
            result = await result
        if [run.id for run in result.trajectories] != [run.id for run in group.trajectories]:
            raise ValueError("the group reward did not return the trajectories that it was given, in their order")
        values = [value for rewards in _rewards_of(result) for value in rewards]
        if wrong := next(filter(None, (reward_problem(value) for value in values if value is not None)), None):
            raise ValueError(wrong)
    except Exception as error:  # the user's code, at the edge of a group: recorded, and the runs are kept
        log.warning("the scenario %s stays unscored: %s: %s", group.scenario.id, type(error).__name__, error)
        return remove_rewards(group, f"{type(error).__name__}: {error}")
    return result if result is copy and _rewards_of(result) == _rewards_of(group) else judged_together(result)


def _own_rewards(group: TrajectoryGroup) -> TrajectoryGroup:
    """Copies a group, so that rewards, metrics and metadata that are set in the copy are not set in the group."""
    copies = [
        run.model_copy(
            update={
                "completions": [call.model_copy() for call in run.completions],
                "node_rewards": None if run.node_rewards is None else dict(run.node_rewards),
                "metrics": dict(run.metrics),
                "metadata": dict(run.metadata),
            }
        )
        for run in group.trajectories
    ]
    return group.model_copy(update={"trajectories": copies})


def _rewards_of(group: TrajectoryGroup) -> list[list[float | None]]:
    """All rewards of each run: its own, those by node, those of its completions."""
    return [
        [run.reward, *(run.node_rewards or {}).values(), *(call.reward for call in run.completions)]
        for run in group.trajectories
    ]


def judged_together(group: TrajectoryGroup) -> TrajectoryGroup:
    """Copies a group; its runs have rewards of one new judgement."""
    judgement = {"judgement": f"jd-{uuid.uuid4().hex[:12]}"}
    return group.model_copy(update={"trajectories": [run.model_copy(update=judgement) for run in group.trajectories]})


def remove_rewards(group: TrajectoryGroup, why: str) -> TrajectoryGroup:
    """Copies a group without its rewards. Its runs are never trained on.

    Args:
        group: The group.
        why: The reason, for each `reward_error`.
    """
    count = len(group.trajectories)
    return replace_rewards(group, [None] * count, errors=[why] * count)


def replace_rewards(
    group: TrajectoryGroup,
    rewards: Sequence[float | None],
    *,
    errors: Sequence[str | None] | None = None,
    metrics: Sequence[Mapping[str, float]] | None = None,
    metadata: Sequence[Mapping[str, Any]] | None = None,
    reasons: Sequence[str | None] | None = None,
) -> TrajectoryGroup:
    """Copies a group with other rewards, which are of one judgement. The group itself is not changed.

    The reward that a run had is kept in `metrics["independent_reward"]`, the reason why it had none in
    `independent_reward_error`. Rewards by node and of single completions are removed: they would be trained in place of
    the new reward.

    Args:
        group: The runs.
        rewards: The new reward of each run, in their order; None: the run stays unscored.
        errors: Why a reward is None.
        metrics: Added to those of each run.
        metadata: Added to that of each run.
        reasons: A judge's reason for each run.
    """
    copies = []
    for at, (trajectory, reward) in enumerate(zip(group.trajectories, rewards, strict=True)):
        before = {} if trajectory.reward is None else {"independent_reward": trajectory.reward}
        copies.append(
            trajectory.model_copy(
                update={
                    "reward": reward,
                    "reward_error": errors[at] if errors and reward is None else None,
                    "reward_reason": reasons[at] if reasons else None,
                    "independent_reward_error": trajectory.independent_reward_error or trajectory.reward_error,
                    "node_rewards": None,
                    "completions": [call.model_copy(update={"reward": None}) for call in trajectory.completions],
                    "metrics": {**before, **trajectory.metrics, **(metrics[at] if metrics else {})},
                    "metadata": {**trajectory.metadata, **(metadata[at] if metadata else {})},
                }
            )
        )
    return judged_together(group.model_copy(update={"trajectories": copies}))


def weighted(**parts: tuple[float, RewardFunction]) -> RewardFunction:
    """A reward function that is a weighted sum: `weighted(correct=(1.0, exact), brief=(0.2, brevity))`.

    The weighted parts become metrics under their names. Where a part returns named parts itself, their sum counts.
    A part that raises, returns None, or is not finite leaves the run unscored, with the part's name in `reward_error`.
    It never counts as 0.

    Args:
        parts: Weight and reward function of each part, by name.

    Raises:
        ConfigError: There are no parts, or a weight is not finite.
    """
    _check(parts)

    async def reward(trajectory: Trajectory) -> dict[str, float]:
        weighted_parts = {}
        for name, (weight, function) in parts.items():
            try:
                value = function(trajectory)
                value = await value if inspect.isawaitable(value) else value
                if value is None:
                    raise ValueError(UNDECIDED)
                if isinstance(value, NodeRewards):
                    raise TypeError("rewards by node cannot be part of a sum: blend inside of one function")
                total = math.fsum(map(_number, value.values())) if isinstance(value, Mapping) else _number(value)
                if wrong := reward_problem(total):
                    raise ValueError(wrong)
            except Exception as error:  # the user's code: named, and recorded by `score`
                raise RuntimeError(f"the part {name!r} failed: {type(error).__name__}: {error}") from error
            weighted_parts[name] = weight * total
        return weighted_parts

    return reward


def group_sum(**parts: tuple[float, GroupReward]) -> GroupReward:
    """Adds weighted group rewards to the reward that each run has: `group_sum(style=(0.3, Ruler("provider/name")))`.

    A run without a reward function begins at 0. A run whose reward function failed, or that a part could not score,
    stays unscored. The weighted parts become metrics under their names.

    Args:
        parts: Weight and group reward of each part, by name.

    Raises:
        ConfigError: There are no parts, or a weight is not finite.
    """
    _check(parts)

    async def reward(group: TrajectoryGroup) -> TrajectoryGroup:
        scored_groups = await asyncio.gather(*(score_group(group, function) for _, function in parts.values()))
        rewards: list[float | None] = []
        errors: list[str | None] = []
        metrics: list[dict[str, float]] = []
        metadata: list[dict[str, object]] = []
        reasons: list[str | None] = []
        for at, trajectory in enumerate(group.trajectories):
            mine = {name: scored.trajectories[at] for name, scored in zip(parts, scored_groups, strict=True)}
            failures = (f"the part {name!r}: {run.reward_error}" for name, run in mine.items() if run.reward is None)
            error = trajectory.reward_error or next(failures, None)
            sums = {name: parts[name][0] * run.reward for name, run in mine.items() if run.reward is not None}
            rewards.append(None if error else math.fsum([trajectory.reward or 0.0, *sums.values()]))
            errors.append(error)
            metrics.append({**{k: v for run in mine.values() for k, v in run.metrics.items()}, **sums})
            metadata.append({k: v for run in mine.values() for k, v in run.metadata.items()})
            reasons.append(" / ".join(run.reward_reason for run in mine.values() if run.reward_reason) or None)
        return replace_rewards(group, rewards, errors=errors, metrics=metrics, metadata=metadata, reasons=reasons)

    return reward


def when_undecided(judge: GroupReward) -> GroupReward:
    """A group reward that asks a judge only about runs for which the reward function returned None.

    Where the reward function decided all runs of a group, the judge is not called. Otherwise the judge sees all runs of
    the group, because it compares them, and decided runs keep their reward. A run whose reward function failed stays
    unscored.

    Args:
        judge: Scores the undecided runs, such as `Ruler`.
    """

    async def reward(group: TrajectoryGroup) -> TrajectoryGroup:
        undecided = [
            trajectory.reward is None
            and trajectory.reward_error in (None, UNDECIDED)
            and all(call.reward is None for call in trajectory.completions)
            for trajectory in group.trajectories
        ]
        if not any(undecided):
            return group
        judged_group = await score_group(group, judge)
        pairs = zip(undecided, judged_group.trajectories, group.trajectories, strict=True)
        runs = [new if is_undecided else old for is_undecided, new, old in pairs]
        return judged_together(group.model_copy(update={"trajectories": runs}))

    return reward


def _check(parts: Mapping[str, tuple[float, object]]) -> None:
    if not parts:
        raise ConfigError("a sum of rewards needs at least one part: name=(weight, reward)")
    for name, (weight, _) in parts.items():
        if not math.isfinite(weight):
            raise ConfigError(f"the weight of {name!r} is {weight}, not a finite number")
