"""Rewards → advantages, as in TRL's GRPOTrainer: compared within a group, scaled by `scale_rewards`. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

EPSILON = 1e-4
"""Added to the standard deviation, as TRL does."""


def advantages(
    groups: Sequence[Sequence[float]],
    scale_rewards: Literal["group", "batch", "none"],
    baselines: Sequence[float | None] | None = None,
    group_baseline: Literal["mean", "leave_one_out"] = "mean",
) -> list[list[float]]:
    """(reward − baseline) / scale for every trajectory of every group, in the same shape.

    A group of one has nothing to compare with and gets 0, as does a group whose rewards are all equal, unless a
    baseline is given.

    Args:
        groups: Rewards, group by group.
        scale_rewards: The scale is the standard deviation (n − 1) of the group or of the whole batch, plus `EPSILON`;
            or 1. A group with a given baseline is not scaled by its own deviation.
        baselines: What the rewards of each group are compared with; None, for all or for one: see `group_baseline`.
        group_baseline: The group's mean, or for each reward the mean of the others in its group (RLOO).
    """
    flat = np.array([reward for group in groups for reward in group], dtype=np.float64)
    batch_std = float(flat.std(ddof=1)) if len(flat) > 1 else 0.0
    result: list[list[float]] = []
    for group, baseline in zip(groups, baselines or [None] * len(groups), strict=True):
        if zero_variance(group, baseline):
            result.append([0.0] * len(group))
            continue
        rewards = np.array(group, dtype=np.float64)
        centred = rewards - (rewards.mean() if baseline is None else baseline)
        if group_baseline == "leave_one_out" and baseline is None and len(rewards) > 1:
            centred *= len(rewards) / (len(rewards) - 1)  # r − mean of the others
        if scale_rewards == "group" and baseline is None:
            centred = centred / (rewards.std(ddof=1) + EPSILON)
        elif scale_rewards == "batch":
            centred = centred / (batch_std + EPSILON)
        result.append(centred.tolist())
    return result


def zero_variance(group: Sequence[float], baseline: float | None = None) -> bool:
    """Whether all advantages of a group are 0: its rewards equal the baseline; without one, they equal each other."""
    if baseline is not None:
        return all(abs(reward - baseline) < 1e-9 for reward in group)
    return len(group) < 2 or max(group) - min(group) < 1e-9
