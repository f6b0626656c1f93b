"""The learning rate over the updates of a training. Pure."""

from __future__ import annotations

import math
from typing import Literal

Shape = Literal["constant", "constant_with_warmup", "linear", "cosine"]


def learning_rate(peak: float, shape: Shape, update: float, *, warmup: int, total: int | None) -> float:
    """The learning rate of one update, as transformers' schedulers of the same names have it.

    It rises over `warmup` updates. Then it stays, or falls to 0 at `total` along a line or half a cosine.

    Args:
        peak: The largest learning rate.
        shape: How it goes on after the warm-up.
        update: Number of the update, from 0. A fraction is between two updates.
        warmup: Number of updates until the peak.
        total: Number of updates until 0; None: it stays.
    """
    if update < warmup:
        return peak * update / warmup
    if shape in ("constant", "constant_with_warmup") or total is None:
        return peak
    done = min(1.0, (update - warmup) / max(1, total - warmup))
    return peak * (1 - done if shape == "linear" else (1 + math.cos(math.pi * done)) / 2)
