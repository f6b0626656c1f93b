"""Confidence intervals for success rates."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from trainer_server.common.intervals import wilson

_Z95 = 1.959963984540054


def mean_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """95 % interval of a mean by the normal approximation; None for fewer than two values."""
    if len(values) < 2:
        return None
    half = _Z95 * statistics.stdev(values) / math.sqrt(len(values))
    return statistics.fmean(values) - half, statistics.fmean(values) + half


def gain_interval(gains: Sequence[float]) -> tuple[float, float]:
    """95 % interval of a mean gain in success rate, of the same scenarios before and after.

    It is that of Bonett and Price (2012) for differences of paired proportions: normal, after one gain of 1 and one of
    -1 were added to the data. So a few scenarios that happen to differ are no gain: of 120 scenarios, six that are
    solved only after and none only before are the fewest whose interval is above 0, as in McNemar's exact test.

    Args:
        gains: The gain of each scenario, from -1 to 1.
    """
    padded = [*gains, 1.0, -1.0]
    mean = statistics.fmean(padded)
    half = _Z95 * math.sqrt(statistics.pvariance(padded, mean) / len(padded))
    return max(-1.0, mean - half), min(1.0, mean + half)


def rate_interval(rates: Sequence[float], trials: int) -> tuple[float, float]:
    """95 % interval of a mean success rate over scenarios, each of which may have been tried several times.

    It is Wilson's, for an effective number of independent trials: the number at which independent trials would have the
    variance that the rates of the scenarios have (Korn and Graubard 1998, without their correction for few scenarios).
    It is at least the number of scenarios and at most the number of trials. Where a scenario always has the same
    outcome, further trials of it narrow nothing; where all scenarios are alike, each trial counts.

    Args:
        rates: Success rate of each scenario, from 0 to 1.
        trials: How many trials all scenarios had together.

    Returns:
        The lower and the upper end, with the mean of the rates between them.
    """
    scenarios = len(rates)
    if scenarios == 0:
        return 0.0, 1.0
    rate = statistics.fmean(rates)
    effective = float(scenarios)
    if scenarios > 1 and 0.0 < rate < 1.0:
        variance = statistics.variance(rates) / scenarios
        effective = min(max(rate * (1 - rate) / variance, scenarios), trials) if variance else float(trials)
    low, high = wilson(rate * effective, effective)
    return min(rate, low), max(rate, high)
