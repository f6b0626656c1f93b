"""The time that a warm start has taken, and whether there is enough left for another update."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass

from trainer_server.training.ranks import Ranks


@dataclass(frozen=True, slots=True)
class Moment:
    """share: of the time that the warm start may take; 0 where it may take any time. over: whether another update, and
    the measurement after it, would take longer."""

    share: float
    over: bool


class Clock:
    """Counts the seconds from when it is made. All ranks see the first rank's.

    Args:
        limit: Seconds that the warm start may take; None: any.
        ranks: The processes that train together.
        spent_seconds: Seconds that it has taken before.
    """

    def __init__(self, limit: float | None, ranks: Ranks, spent_seconds: float = 0.0) -> None:
        self._limit, self._ranks = limit, ranks
        self._started = time.monotonic() - spent_seconds

    @property
    def elapsed_seconds(self) -> float:
        """Seconds since the beginning, by this process's clock."""
        return time.monotonic() - self._started

    @property
    def seconds_left(self) -> float | None:
        """Seconds that are left, by this process's clock; None: there is no limit."""
        return None if self._limit is None else max(0.0, self._limit - self.elapsed_seconds)

    def look(self, needed_seconds: float) -> Moment:
        """The moment before an update; the same for all ranks, which all call it.

        Args:
            needed_seconds: Seconds that the update and the measurement after it will take.
        """
        if self._limit is None:
            return Moment(0.0, over=False)
        own = [self.elapsed_seconds / self._limit, self.elapsed_seconds + needed_seconds > self._limit]
        share, over = json.loads(str(self._ranks.broadcast(json.dumps(own))))
        return Moment(share, over)
