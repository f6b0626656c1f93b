"""Which demonstrations an update imitates: those that begin alike together, so that their prefix is computed once."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from trainer_server.jobs.demonstrations import Row
from trainer_server.training.model import tree


def families(rows: Sequence[Row]) -> list[int]:
    """A number for each row, the same for rows that begin alike.

    Rows begin alike if they share at least half of what stands before the first answer of one of them. So
    demonstrations of one agent, with its system prompt and tools, are one family; questions without such a prompt are
    each their own.

    Args:
        rows: Of a warm start.
    """
    tokens = [np.array(row.ids, dtype=np.uint32) for row in rows]
    order = sorted(range(len(rows)), key=lambda index: tokens[index].astype(">u4").tobytes())
    family_of = [0] * len(rows)
    for before, index in pairwise(order):
        context = min(rows[before].loss_spans[0][0], rows[index].loss_spans[0][0])
        alike = tree.common_prefix(tokens[before], tokens[index]) >= context / 2
        family_of[index] = family_of[before] + (not alike)
    return family_of


def family_prefixes(rows: Sequence[Row], family_of: Sequence[int]) -> dict[int, tuple[list[int], int]]:
    """By family: the indices of its rows, and how many tokens all of them begin with; 0 for a single row.

    Args:
        rows: Of a warm start.
        family_of: Of each row, see `families`.
    """
    members: defaultdict[int, list[int]] = defaultdict(list)
    for index, family in enumerate(family_of):
        members[family].append(index)
    lengths: dict[int, tuple[list[int], int]] = {}
    for family, indices in members.items():
        first, *others = (np.array(rows[index].ids, dtype=np.uint32) for index in indices)
        lengths[family] = indices, min((tree.common_prefix(first, other) for other in others), default=0)
    return lengths


def batches(family_of: Sequence[int], size: int, rng: random.Random | None) -> list[list[int]]:
    """One pass over all rows: the indices of the rows of each update.

    A batch has rows of one family, as long as a family has enough of them. What is left of all families fills the
    other batches, family by family.

    Args:
        family_of: Of each row, see `families`.
        size: Rows of an update. One update has fewer, where the number of rows is no multiple of it.
        rng: Draws the order. None: the order is that of the rows.
    """
    members: defaultdict[int, list[int]] = defaultdict(list)
    count = len(family_of)
    for index in range(count) if rng is None else rng.sample(range(count), count):
        members[family_of[index]].append(index)
    full: list[int] = []
    rest: list[int] = []
    for indices in members.values():
        whole = len(indices) // size * size
        full += indices[:whole]
        rest += indices[whole:]
    indices_by_family = full + rest
    slices = [indices_by_family[at : at + size] for at in range(0, len(indices_by_family), size)]
    return sorted(slices, key=min) if rng is None else rng.sample(slices, len(slices))


@dataclass(frozen=True, slots=True)
class Paths:
    """Answers of demonstrations and what stands before each: the paths of a prefix tree."""

    prompts: list[tree.Ints]
    answers: list[tree.Ints]

    @classmethod
    def of(cls, rows: Sequence[Row]) -> Paths:
        """rows: The demonstrations; every span that has a loss is an answer."""
        prompts, answers = [], []
        for row in rows:
            ids = np.array(row.ids, dtype=np.int64)
            prompts += [ids[:start] for start, _ in row.loss_spans]
            answers += [ids[start:stop] for start, stop in row.loss_spans]
        return cls(prompts, answers)

    def pack(self, budget: int, *, share: bool, ranks: int, row_end: int | None = None) -> tree.Packing:
        """Rows of at most `budget` tokens; a longer path has a row of its own, so that none is left out.

        Args:
            budget: Tokens of a row.
            share: Whether rows may have branches. Without them, answers share a row only where each path continues
                the whole path before it.
            ranks: Number of processes that divide the rows.
            row_end: Tokens of a row above which its layers are computed twice, see `tree.pack`.
        """
        longest = max(len(prompt) + len(answer) for prompt, answer in zip(self.prompts, self.answers, strict=True))
        return tree.pack_for(
            ranks, self.prompts, self.answers, budget=max(budget, longest), share=share, row_end=row_end
        )
