"""How a warm start goes on in its list of batches, so that the list ends when the time does."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

_KNOWN = 2
"""Updates after which their time is known well enough."""
_ANOTHER = 0.25
"""Share of a pass for which there must be time, so that another pass is begun."""


class Pace:
    """Chooses how many batches each update steps over.

    Where there is no time for all passes, fewer are planned, and the batches of those are thinned out evenly. So the
    end of the last pass is imitated too, which an order that teaches leaves the most difficult to.

    Args:
        passes: Passes over the batches at most.
    """

    def __init__(self, passes: int) -> None:
        self._passes = passes
        self._updates, self._computed = 0, 0.0

    def after(self, costs: Sequence[float], place: float, share: float) -> float:
        """The place of the next update: one batch on, or more where time is short. Infinite: it was the last one.

        Args:
            costs: What each batch of a pass costs, such as its tokens.
            place: Of the update, in batches since the beginning of the first pass.
            share: Of the time that was spent when it began, 0 to 1.
        """
        until = list(itertools.accumulate(costs, initial=0.0))
        passed, at = divmod(int(place), len(costs))
        known, computed = self._updates >= _KNOWN and 0 < share < 1, self._computed
        self._updates += 1
        self._computed += costs[at]
        affordable = computed * (1 - share) / share - costs[at] if known else 0.0
        if affordable <= 0:
            return place + 1
        gone = passed * until[-1] + until[at + 1]
        passes = math.floor((gone + affordable) / until[-1] + 1 - _ANOTHER)
        passes = min(max(passes, passed + 1), self._passes)
        place += max(1.0, (passes * until[-1] - gone) / affordable)
        return place if int(place) < passes * len(costs) else math.inf
