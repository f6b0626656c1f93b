"""Which rows each update of a warm start imitates: all of them, or as many of the first as there is time for."""

from __future__ import annotations

import json
import math
import random
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from trainer_server.jobs.demonstrations import Row
from trainer_server.training.ranks import ALONE, Ranks
from trainer_server.training.sft.batches import batches, families, family_prefixes
from trainer_server.training.sft.prefixes import UPDATES
from trainer_server.wire import SFTConfig

PROBED = 4
"""Updates after which the time of an update is measured. With `fit_to_time` they imitate the first rows."""


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


class Order:
    """The rows of one update after another.

    With `fit_to_time` no row comes twice before all have come once, and the first rows come before the last: after
    PROBED updates, the first of the others, as many as there is time for, by what the updates took so far; these in a
    random order. If they took less, again as many as there is time for. After all rows, and otherwise from the start, a
    pass takes all of them.

    Args:
        rows: Of the warm start.
        config: Of the warm start.
        ranks: The processes that train together. All get the same order.
    """

    def __init__(self, rows: Sequence[Row], config: SFTConfig, ranks: Ranks = ALONE) -> None:
        self.size = config.per_device_train_batch_size * config.gradient_accumulation_steps
        """Rows of an update."""
        self.family_of = families(rows)
        """Of each row."""
        self._rng = random.Random(config.seed) if config.shuffle_dataset else None
        self._ranks = ranks
        self._costs: list[float] = []
        self._count = len(rows)
        if config.fit_to_time:
            self._costs = _costs(rows, self.family_of, self.size, config)
            self._count = 0
        self._queue: deque[list[int]] = deque()
        self._cost, self._seconds = 0.0, 0.0
        self.passes = 0
        """How many passes over all rows have begun; 0 while rows are taken as there is time for them."""
        self.imitated_rows: set[int] = set()
        """Indices of the rows that were taken."""

    @property
    def epoch(self) -> int:
        """Updates of a pass over all rows."""
        return math.ceil(len(self.family_of) / self.size)

    @property
    def fits(self) -> bool:
        """Whether rows are taken as there is time for them."""
        return self._count < len(self.family_of)

    def take(self, seconds: float | None) -> list[int]:
        """The indices of the rows of the next update.

        Args:
            seconds: What is left of the time; None: there is no limit.
        """
        if not self._queue:
            self._queue.extend(self._portion(seconds) if self.fits else self._pass())
        batch = self._queue.popleft()
        self.imitated_rows.update(batch)
        return batch

    def record(self, row_indices: Sequence[int], seconds: float) -> None:
        """Counts the time of an update.

        Args:
            row_indices: Its rows, as `take` gave them.
            seconds: Its time.
        """
        if self._costs:
            self._cost += sum(self._costs[index] for index in row_indices)
            self._seconds += seconds

    def _pass(self) -> list[list[int]]:
        self.passes += 1
        return batches(self.family_of, self.size, self._rng)

    def _portion(self, seconds: float | None) -> list[list[int]]:
        """Rows that have not come yet, one update of them at least."""
        first, count = self._count, PROBED * self.size
        if self._cost and seconds is not None:
            rate = self._seconds / self._cost
            count = sum(cost * rate <= seconds for cost in accumulate(self._costs[first:]))
        own = min(first + max(count, self.size), len(self.family_of))
        self._count = int(str(self._ranks.broadcast(str(own))))
        portion = batches(self.family_of[first : self._count], self.size, self._rng)
        return [[first + index for index in batch] for batch in portion]


def _costs(rows: Sequence[Row], family_of: Sequence[int], size: int, config: SFTConfig) -> list[float]:
    """What each row adds to an update: its own tokens, and its share of what all rows of its family begin with, in
    tokens that are computed forward and backward. A forward pass alone counts half."""
    costs = [0.0] * len(rows)
    for indices, common in family_prefixes(rows, family_of).values():
        share = common * (0.5 if config.detach_prefix else 1.0) / min(size, len(indices))
        for index in indices:
            own = len(rows[index].ids) - common
            if config.detach_prefix == "context":
                costs[index] = own / 2 + rows[index].loss_tokens + share / UPDATES
            else:
                costs[index] = own + share
    return costs
