"""The keys and values of what demonstrations begin with, kept for a few updates.

Where no gradient goes through them, they serve as long as the weights are about the same. An update moves these little,
and tools and system prompt are most of many a demonstration.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trainer_server.jobs.demonstrations import Row as Demonstration
from trainer_server.training.model.attention import Trunk
from trainer_server.training.model.policy import PolicyModel
from trainer_server.training.model.tree import Ints, Row
from trainer_server.training.sft.batches import family_prefixes

UPDATES = 8
"""Updates after which they are computed again (docs/benchmarks/imitation.md)."""
_MOST = 4
"""Prefixes that are kept at most, those that save most: one of 3,000 tokens of a model of 1.5 B takes 90 MB."""


class Prefixes:
    """What layers keep of the beginnings of a warm start's rows.

    Args:
        model: Computes it.
        rows: The demonstrations.
        family_of: Of each, see `families`. What all of a family begin with is a prefix.
        size: Rows of an update: a family of fewer has no prefix.
    """

    def __init__(self, model: PolicyModel, rows: Sequence[Demonstration], family_of: Sequence[int], size: int) -> None:
        self._model = model
        savings: list[tuple[int, Ints]] = []
        for indices, common in family_prefixes(rows, family_of).values():
            length = min(common, *(rows[index].loss_spans[0][0] - 1 for index in indices))
            if len(indices) > size and length > 0:
                prefix = np.array(rows[indices[0]].ids[:length], dtype=np.int64)
                savings.append((length * (len(indices) - 1), prefix))
        savings.sort(key=lambda saving: -saving[0])
        self._prefixes = [prefix for _, prefix in savings[:_MOST]]
        self._trunks: dict[int, Trunk] = {}
        self._updates = 0

    def end_update(self) -> None:
        """Counts an update. Some of them end what is kept."""
        self._updates += 1
        if self._updates % UPDATES == 0:
            self._trunks.clear()

    def trunk(self, row: Row) -> Trunk | None:
        """What layers keep of the longest prefix that a row begins with. None: it begins with none."""
        fitting = [
            index
            for index, prefix in enumerate(self._prefixes)
            if len(prefix) <= row.trunk and np.array_equal(row.tokens_T[: len(prefix)], prefix)
        ]
        if not fitting:
            return None
        index = max(fitting, key=lambda index: len(self._prefixes[index]))
        if index not in self._trunks:
            self._trunks[index] = self._model.trunk(row, len(self._prefixes[index]))
        return self._trunks[index]
