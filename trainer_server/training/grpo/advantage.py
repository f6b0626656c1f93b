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

    baseline: the group's mean, the mean of the others in it (leave one out), or the one given for the group. scale:
    the group's standard deviation (n − 1), the whole batch's, or 1; with a given baseline the group's own is not used.
    A group of one has nothing to compare with and gets 0, as does a group whose rewards are all equal, unless a
    baseline is given.
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
    """Whether a group teaches nothing: all rewards equal the baseline; without one, each other, or there is but one."""
    if baseline is not None:
        return all(abs(reward - baseline) < 1e-9 for reward in group)
    return len(group) < 2 or max(group) - min(group) < 1e-9
