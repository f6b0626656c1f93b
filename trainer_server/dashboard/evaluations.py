"""What several evaluation runs of a scenario tell of each version: pass@k, the best reward, and how much is chance."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from trainer_server.common.estimators import chance, difficulty, pass_at, sizes
from trainer_server.ledger.run_list import Outcome


@dataclass(frozen=True, slots=True)
class VersionRepeats:
    """A version's scenarios that have several evaluation runs.

    Args:
        version: The version.
        scenarios: How many scenarios these are.
        n: Runs of a scenario: the fewest that one has.
        pass_at: By k (1, 2, 4, … n), the probability that one of k runs succeeds, as a mean over the scenarios.
        best: Mean over the scenarios of the greatest reward of all their runs.
        within: Variance of the success among the runs of a scenario: chance.
        between: Variance of the success rate between scenarios, without that part: difficulty.
    """

    version: int
    scenarios: int
    n: int
    pass_at: Mapping[int, float]
    best: float
    within: float
    between: float


def repeats_of(outcomes: Sequence[Outcome]) -> list[VersionRepeats]:
    """What they tell of each version, the newest first.

    Args:
        outcomes: By version and scenario, each of two runs or more; those of a version behind one another.
    """
    rows = []
    for version, group in groupby(outcomes, key=lambda outcome: outcome.version):
        of_version = list(group)
        counts = [(outcome.runs, outcome.successes) for outcome in of_version]
        n = min(runs for runs, _ in counts)
        rows.append(
            VersionRepeats(
                version,
                len(counts),
                n,
                {k: statistics.fmean(pass_at(k, *count) for count in counts) for k in sizes(n)},
                statistics.fmean(outcome.greatest for outcome in of_version),
                chance(counts),
                difficulty(counts),
            )
        )
    return sorted(rows, key=lambda row: -row.version)
