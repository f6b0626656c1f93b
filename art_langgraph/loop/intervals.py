"""Confidence intervals for success rates."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

_Z95 = 1.959963984540054


def wilson(successes: int, n: int) -> tuple[float, float]:
    """95 % interval of a success rate (Wilson 1927): right for small n and for rates near 0 and 1."""
    if n == 0:
        return 0.0, 1.0
    rate, z2 = successes / n, _Z95**2
    centre = (rate + z2 / (2 * n)) / (1 + z2 / n)
    half = _Z95 * math.sqrt(rate * (1 - rate) / n + z2 / (4 * n * n)) / (1 + z2 / n)
    return max(0.0, centre - half), min(1.0, centre + half)


def mean_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """95 % interval of a mean by the normal approximation; None for fewer than two values."""
    if len(values) < 2:
        return None
    half = _Z95 * statistics.stdev(values) / math.sqrt(len(values))
    return statistics.fmean(values) - half, statistics.fmean(values) + half
