"""Reward functions, of one run or of a group: what they may return, and what becomes of one that fails."""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from art_langgraph.trajectory import Trajectory, TrajectoryGroup

log = logging.getLogger("art_langgraph")


class NodeRewards(dict[str, float]):
    """Rewards by node: `NodeRewards(planner=1.0, **{"worker/*": 0.2})`.

    Keys are names of nodes, or shell patterns for their paths. A completion is trained with the reward of its node and
    compared with the completions of the same node; those of other nodes are not trained. The sum is the trajectory's
    reward. Single completions may get one of their own: the reward function sets `completion.reward`.
    """


Parts = float | Mapping[str, float]
"""A reward, or named parts whose sum is the reward; the parts are kept as metrics. Or NodeRewards."""
RewardFunction = Callable[[Trajectory], Parts | Awaitable[Parts | None] | None]
"""The reward of a run, or None where the function cannot decide: see `blends.when_undecided`."""
GroupReward = Callable[[TrajectoryGroup], TrajectoryGroup | Awaitable[TrajectoryGroup]]
"""Scores the runs of one scenario together: the group → the same runs with their rewards. `Ruler` is one."""
UNDECIDED = "the reward function could not decide"
"""`reward_error` of a run for which a reward function returned None."""


async def score(trajectory: Trajectory, reward: RewardFunction) -> None:
    """Sets reward and metrics of a trajectory, also of one whose graph raised: a failure may deserve a reward.

    A function that raises, or returns something that is not a finite number, leaves the reward None and says why in
    `reward_error`; such a trajectory is never trained on.
    """
    trajectory.reward = trajectory.reward_error = trajectory.node_rewards = None
    try:
        found = reward(trajectory)
        if inspect.isawaitable(found):
            found = await found
        if found is None:
            trajectory.reward_error = UNDECIDED
            return
        parts = {str(k): float(v) for k, v in found.items()} if isinstance(found, Mapping) else {}
        total = math.fsum(parts.values()) if isinstance(found, Mapping) else float(found)
    except Exception as error:  # the user's code, at the edge of a run: recorded, and the run is kept
        trajectory.reward_error = f"{type(error).__name__}: {error}"
        return
    own = [call.reward for call in trajectory.completions if call.reward is not None]
    if not all(map(math.isfinite, [total, *parts.values(), *own])):
        wrong = next(value for value in [total, *parts.values(), *own] if not math.isfinite(value))
        trajectory.reward_error = f"the reward is {wrong}, not a finite number"
        for call in trajectory.completions:
            call.reward = None
        return
    if isinstance(found, NodeRewards):
        trajectory.node_rewards = parts
    trajectory.reward = total
    trajectory.metrics.update(parts)


async def score_group(group: TrajectoryGroup, reward: GroupReward) -> TrajectoryGroup:
    """A group as its reward function scores it. One that raises, loses runs or gives a reward that is not finite leaves
    the whole group unscored, with the reason in each `reward_error`."""
    try:
        found = reward(group)
        if inspect.isawaitable(found):
            found = await found
        if [one.id for one in found.trajectories] != [one.id for one in group.trajectories]:
            raise ValueError("the group reward did not return the trajectories that it was given, in their order")
        if wrong := [one for one in found.rewards if one is not None and not math.isfinite(one)]:
            raise ValueError(f"the reward is {wrong[0]}, not a finite number")
    except Exception as error:  # the user's code, at the edge of a group: recorded, and the runs are kept
        log.warning("the scenario %s stays unscored: %s: %s", group.scenario.id, type(error).__name__, error)
        return unscored(group, f"{type(error).__name__}: {error}")
    return found


def unscored(group: TrajectoryGroup, why: str) -> TrajectoryGroup:
    """A group whose runs have no reward, with the reason: never trained on."""
    count = len(group.trajectories)
    return regrouped(group, [None] * count, errors=[why] * count)


def regrouped(
    group: TrajectoryGroup,
    rewards: Sequence[float | None],
    *,
    errors: Sequence[str | None] | None = None,
    metrics: Sequence[Mapping[str, float]] | None = None,
    metadata: Sequence[Mapping[str, Any]] | None = None,
) -> TrajectoryGroup:
    """A group's runs with other rewards, in their order: copies, so that the group that was given stays as it was.

    errors: why a reward is None. metrics, metadata: added to each run's. The reward that a run had is kept in
    `metrics["independent_reward"]`, why it had none in `metadata["independent_reward_error"]`; rewards by node and of
    single completions go, as they would be trained in place of the new one.
    """
    copies = []
    for at, (one, reward) in enumerate(zip(group.trajectories, rewards, strict=True)):
        before = {} if one.reward is None else {"independent_reward": one.reward}
        why = {} if one.reward_error is None else {"independent_reward_error": one.reward_error}
        copies.append(
            one.model_copy(
                update={
                    "reward": reward,
                    "reward_error": errors[at] if errors and reward is None else None,
                    "node_rewards": None,
                    "completions": [call.model_copy(update={"reward": None}) for call in one.completions],
                    "metrics": {**before, **one.metrics, **(metrics[at] if metrics else {})},
                    "metadata": {**why, **one.metadata, **(metadata[at] if metadata else {})},
                }
            )
        )
    return group.model_copy(update={"trajectories": copies})
