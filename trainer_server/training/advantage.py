"""Rewards → advantages, as in TRL's GRPOTrainer: compared within a group, scaled by `scale_rewards`. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

EPSILON = 1e-4
"""Added to the standard deviation, as TRL does."""


def advantages(
    groups: Sequence[Sequence[float]], scale_rewards: Literal["group", "batch", "none"]
) -> list[list[float]]:
    """(reward − group mean) / scale for every trajectory of every group, in the same shape.

    scale: the group's standard deviation (n − 1), the whole batch's, or 1. A group of one has nothing to compare with
    and gets 0, as does a group whose rewards are all equal.
    """
    flat = np.array([reward for group in groups for reward in group], dtype=np.float64)
    batch_std = float(flat.std(ddof=1)) if len(flat) > 1 else 0.0
    result = []
    for group in groups:
        rewards = np.array(group, dtype=np.float64)
        centred = rewards - rewards.mean()
        if zero_variance(group):
            centred = np.zeros_like(rewards)
        elif scale_rewards == "group":
            centred = centred / (rewards.std(ddof=1) + EPSILON)
        elif scale_rewards == "batch":
            centred = centred / (batch_std + EPSILON)
        result.append(centred.tolist())
    return result


def zero_variance(group: Sequence[float]) -> bool:
    """Whether a group teaches nothing: fewer than two trajectories, or rewards that are all the same."""
    return len(group) < 2 or max(group) - min(group) < 1e-9
