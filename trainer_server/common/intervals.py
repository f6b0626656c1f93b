"""The confidence interval of a success rate."""

from __future__ import annotations

import math

_Z95 = 1.959963984540054


def wilson(successes: float, n: float) -> tuple[float, float]:
    """95 % interval of a success rate (Wilson 1927): right for small n and for rates near 0 and 1.

    It takes trials as independent of one another. Several runs of one scenario are not quite: then it is too narrow.

    Args:
        successes: How many of n trials succeeded; for an effective number of trials not a whole number.
        n: How many trials there are.

    Returns:
        The lower and the upper end. The rate `successes / n` is between them, also after rounding: at n of n the upper
        end would else be below 1 by the last digit.
    """
    if n == 0:
        return 0.0, 1.0
    rate, z2 = successes / n, _Z95**2
    centre = (rate + z2 / (2 * n)) / (1 + z2 / n)
    half = _Z95 * math.sqrt(max(0.0, rate * (1 - rate)) / n + z2 / (4 * n * n)) / (1 + z2 / n)
    return min(rate, max(0.0, centre - half)), max(rate, min(1.0, centre + half))
