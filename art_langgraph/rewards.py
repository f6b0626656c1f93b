"""Reward functions: what they may return, and what becomes of one that fails."""

from __future__ import annotations

import inspect
import math
from collections.abc import Awaitable, Callable, Mapping

from art_langgraph.trajectory import Trajectory

Parts = float | Mapping[str, float]
"""A reward, or named parts whose sum is the reward; the parts are kept as metrics."""
RewardFunction = Callable[[Trajectory], Parts | Awaitable[Parts]]


async def score(trajectory: Trajectory, reward: RewardFunction) -> None:
    """Sets reward and metrics of a trajectory, also of one whose graph raised: a failure may deserve a reward.

    A function that raises, or returns something that is not a finite number, leaves the reward None and says why in
    `reward_error`; such a trajectory is never trained on.
    """
    trajectory.reward, trajectory.reward_error = None, None
    try:
        found = reward(trajectory)
        if inspect.isawaitable(found):
            found = await found
        parts = {str(k): float(v) for k, v in found.items()} if isinstance(found, Mapping) else {}
        total = math.fsum(parts.values()) if isinstance(found, Mapping) else float(found)
    except Exception as error:  # the user's code, at the edge of a run: recorded, and the run is kept
        trajectory.reward_error = f"{type(error).__name__}: {error}"
        return
    if not math.isfinite(total):
        trajectory.reward_error = f"the reward is {total}, not a finite number"
        return
    trajectory.reward = total
    trajectory.metrics.update(parts)
