"""Estimators over several runs of a scenario. Each is unbiased: its mean over all samples of n runs is the true value,
as drawing k of the n runs without replacement is drawing k runs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence


def pass_at(k: int, runs: int, successes: int) -> float:
    """pass@k: the probability that one of k runs succeeds, 1 − C(n−c, k) / C(n, k) (Chen et al. 2021).

    Args:
        k: From 1 to `runs`.
        runs: n, the runs of the scenario.
        successes: c, how many of them succeeded.
    """
    return 1.0 - math.comb(runs - successes, k) / math.comb(runs, k)


def best_of(k: int, rewards: Sequence[float]) -> float:
    """Best of k: the expected greatest reward of k runs, Σ C(i−1, k−1) · r₍ᵢ₎ / C(n, k) over the rewards in ascending
    order. For rewards of 0 and 1 it is pass@k.

    Args:
        k: From 1 to the number of rewards.
        rewards: Of the n runs of the scenario.
    """
    terms = (math.comb(below, k - 1) * reward for below, reward in enumerate(sorted(rewards)))
    return math.fsum(terms) / math.comb(len(rewards), k)


def chance(counts: Sequence[tuple[int, int]]) -> float:
    """Variance of the success among the runs of a scenario, over n − 1, as a mean over the scenarios.

    Args:
        counts: Runs, two at least, and successes of each scenario.
    """
    return statistics.fmean(_variance(*count) for count in counts)


def difficulty(counts: Sequence[tuple[int, int]]) -> float:
    """Variance of the success rate between scenarios, less what chance makes of it with so many runs; 0 where that is
    more, or where there is one scenario.

    Args:
        counts: Runs, two at least, and successes of each scenario.
    """
    if len(counts) < 2:
        return 0.0
    spread = statistics.variance([successes / runs for runs, successes in counts])
    return max(0.0, spread - statistics.fmean(_variance(runs, successes) / runs for runs, successes in counts))


def _variance(runs: int, successes: int) -> float:
    rate = successes / runs
    return rate * (1 - rate) * runs / (runs - 1)


def sizes(most: int) -> list[int]:
    """The k that are shown for `most` runs: 1, 2, 4, … and `most` itself."""
    return [2**power for power in range(most.bit_length()) if 2**power < most] + [most]
