"""Which rows each update of a warm start imitates: all of them, or as many of the first as there is time for."""

from __future__ import annotations

import math
import random
from collections import defaultdict, deque
from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from trainer_server.jobs.demonstrations import Row
from trainer_server.training.model import tree
from trainer_server.training.ranks import ALONE, Ranks
from trainer_server.training.sft.batches import batches, families
from trainer_server.wire import SFTConfig

PROBED = 4
"""Updates after which it is known what an update takes. With `fit_to_time` they imitate the first rows."""


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
        self._size = config.per_device_train_batch_size * config.gradient_accumulation_steps
        self._family_of = families(rows)
        self._rng = random.Random(config.seed) if config.shuffle_dataset else None
        self._ranks = ranks
        self._costs: list[float] = []
        self._come = len(rows)
        if config.fit_to_time:
            self._costs = _costs(rows, self._family_of, self._size, detached=config.detach_prefix)
            self._come = 0
        self._queue: deque[list[int]] = deque()
        self._cost, self._seconds = 0.0, 0.0
        self.passes = 0
        """How many passes over all rows have begun; 0 while rows are taken as there is time for them."""
        self.imitated_rows: set[int] = set()
        """Indices of the rows that were taken."""

    @property
    def epoch(self) -> int:
        """Updates of a pass over all rows."""
        return math.ceil(len(self._family_of) / self._size)

    @property
    def fits(self) -> bool:
        """Whether rows are taken as there is time for them."""
        return self._come < len(self._family_of)

    def take(self, seconds: float | None) -> list[int]:
        """The indices of the rows of the next update.

        Args:
            seconds: What is left of the time; None: there is no limit.
        """
        if not self._queue:
            self._queue.extend(self._portion(seconds) if self.fits else self._pass())
        taken = self._queue.popleft()
        self.imitated_rows.update(taken)
        return taken

    def took(self, row_indices: Sequence[int], seconds: float) -> None:
        """Notes what an update took.

        Args:
            row_indices: Its rows, as `take` gave them.
            seconds: What it took.
        """
        if self._costs:
            self._cost += sum(self._costs[index] for index in row_indices)
            self._seconds += seconds

    def _pass(self) -> list[list[int]]:
        self.passes += 1
        return batches(self._family_of, self._size, self._rng)

    def _portion(self, seconds: float | None) -> list[list[int]]:
        """Rows that have not come yet, one update of them at least."""
        first, count = self._come, PROBED * self._size
        if self._cost and seconds is not None:
            rate = self._seconds / self._cost
            count = sum(cost * rate <= seconds for cost in accumulate(self._costs[first:]))
        own = min(first + max(count, self._size), len(self._family_of))
        self._come = int(str(self._ranks.broadcast(str(own))))
        portion = batches(self._family_of[first : self._come], self._size, self._rng)
        return [[first + index for index in batch] for batch in portion]


def _costs(rows: Sequence[Row], family_of: Sequence[int], size: int, *, detached: bool) -> list[float]:
    """What each row adds to an update: its own tokens, and its share of what all rows of its family begin with, in
    tokens that are computed forward and backward. A forward pass alone counts half."""
    members: defaultdict[int, list[int]] = defaultdict(list)
    for index, family in enumerate(family_of):
        members[family].append(index)
    costs = [0.0] * len(rows)
    for indices in members.values():
        first = np.array(rows[indices[0]].ids, dtype=np.uint32)
        alike = [tree.common_prefix(first, np.array(rows[other].ids, dtype=np.uint32)) for other in indices[1:]]
        common = min(alike, default=0)
        share = common * (0.5 if detached else 1.0) / min(size, len(indices))
        for index in indices:
            costs[index] = len(rows[index].ids) - common + share
    return costs
