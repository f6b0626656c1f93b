"""The learning rate of an update. Pure."""

from __future__ import annotations

import math

from trainer_server.wire import GRPOConfig


def learning_rate(config: GRPOConfig, update: int) -> float:
    """The learning rate of one update, as transformers' schedulers of the same names have it.

    It rises over `warmup_steps` updates. Then it stays, or falls to 0 at `max_steps` along a line or half a cosine.

    Args:
        config: Of the step.
        update: Number of the update in the life of the policy, from 0.
    """
    if update < config.warmup_steps:
        return config.lr * update / config.warmup_steps
    if config.lr_scheduler_type == "constant" or config.max_steps is None:
        return config.lr
    done = min(1.0, (update - config.warmup_steps) / (config.max_steps - config.warmup_steps))
    return config.lr * (1 - done if config.lr_scheduler_type == "linear" else (1 + math.cos(math.pi * done)) / 2)
