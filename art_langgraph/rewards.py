"""Reward functions: what they may return, and what becomes of one that fails."""

from __future__ import annotations

import inspect
import math
from collections.abc import Awaitable, Callable, Mapping

from art_langgraph.trajectory import Trajectory


class NodeRewards(dict[str, float]):
    """Rewards by node: `NodeRewards(planner=1.0, **{"worker/*": 0.2})`.

    Keys are names of nodes, or shell patterns for their paths. A completion is trained with the reward of its node and
    compared with the completions of the same node; those of other nodes are not trained. The sum is the trajectory's
    reward. Single completions may get one of their own: the reward function sets `completion.reward`.
    """


Parts = float | Mapping[str, float]
"""A reward, or named parts whose sum is the reward; the parts are kept as metrics. Or NodeRewards."""
RewardFunction = Callable[[Trajectory], Parts | Awaitable[Parts]]


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
