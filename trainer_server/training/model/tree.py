"""Completions → prefix tree → packed rows: a token sequence that several completions share is computed once.

Sequences are sorted; each then adds what differs from the one before it, which is the tree in depth-first preorder.
Token k of a row is visible to token q iff k ≤ q < end[k], where end[k] closes the subtree that k opens. The new tokens
of a sequence, and of those that go on from its end, form a *run*, which has no branches; the run sees its own ancestors
and, causally, itself. Position id = depth.

Pure numpy; no Python loop per token. Shapes: T tokens of a row, R read-outs, L length of one path.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Tokens = npt.NDArray[np.integer[Any]]


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive tokens of a row that have no branches between them.

    start, stop: their places in the row. path_L: places of all tokens from the root to the end of the run, by depth;
    the last stop − start of them are the run itself.
    """

    start: int
    stop: int
    path_L: Ints


@dataclass(frozen=True, slots=True)
class Row:
    """One packed row.

    tokens_T: token ids. depth_T: their positions, 0 at the root. target_R: token id whose log-probability is read out.
    source_R, offset_R: which completion, and which of its sampled tokens, a read-out belongs to.
    """

    tokens_T: Ints
    depth_T: Ints
    runs: tuple[Run, ...]
    place_R: Ints
    """Place in the row whose hidden state predicts the target."""
    target_R: Ints
    source_R: Ints
    offset_R: Ints

    @property
    def end_T(self) -> Ints:
        """End of the subtree that each token opens; the mask's definition, for reference and for FlexAttention."""
        end_T = np.zeros(len(self.tokens_T), dtype=np.int64)
        for run in self.runs:  # later runs lie further right: the last writer wins
            end_T[run.path_L] = run.stop
        return end_T

    @property
    def trunk(self) -> int:
        """Number of tokens, from the root, that all of the row share and that predict no target."""
        apart = self.end_T < len(self.tokens_T)
        first = int(apart.argmax()) if apart.any() else len(self.tokens_T)
        return min(first, int(self.place_R.min()))


@dataclass(frozen=True, slots=True)
class Packing:
    """The rows of a batch.

    total: tokens that separate sequences would compute. unique: tokens of one single tree. repeats: what splitting
    over the budget computes again. too_long: completions whose single path exceeds the budget, in no row.
    """

    rows: tuple[Row, ...]
    total: int
    unique: int
    repeats: int
    too_long: tuple[int, ...]


def pack(
    prompts: Sequence[Ints],
    completions: Sequence[Ints],
    *,
    budget: int,
    share: bool = True,
    row_end: int | None = None,
) -> Packing:
    """Packs completions with their prompts into rows of at most `budget` tokens.

    The last token of a completion is only ever a target: nothing is computed at its place.

    Args:
        prompts: Token ids, one array for each completion; none may be empty.
        completions: Token ids that were sampled after the prompt of the same index; none may be empty.
        budget: Tokens of a row at most. A completion whose own path is longer is in no row.
        share: False makes rows without branches, for models whose layers would leak between them: only a completion
            whose path continues the whole path before it, as the next turn of a conversation, shares a row with it.
        row_end: Tokens of a row above which its layers are computed twice. A row ends there, unless what the next
            completion shares with it would take longer to compute again. None: nowhere.
    """
    # Four bytes a token, the highest first: the order of the bytes is the order of the tokens.
    paths = [np.concatenate([p, c[:-1]]).astype(">u4") for p, c in zip(prompts, completions, strict=True)]
    too_long = tuple(i for i, path in enumerate(paths) if len(path) > budget)
    fitting = [i for i, path in enumerate(paths) if len(path) <= budget]
    order = sorted(fitting, key=lambda i: paths[i].tobytes())
    rows: list[Row] = []
    pending: list[tuple[int, int]] = []  # (completion, how much of its path the row has already)
    length = unique = 0
    previous = np.empty(0, dtype=">u4")
    for i in order:
        common = common_prefix(previous.view(np.uint32), paths[i].view(np.uint32))
        unique += len(paths[i]) - common
        branches = common < len(previous)
        new_length = length + len(paths[i]) - common
        # A forward pass of the whole row, or both passes of the part that is shared.
        is_costly = row_end is not None and new_length > row_end and new_length > 2 * common
        if pending and ((branches and not share) or new_length > budget or is_costly):
            rows.append(_row(pending, paths, prompts, completions))
            pending, length = [], 0
        have = common if pending else 0
        pending.append((i, have))
        length += len(paths[i]) - have
        previous = paths[i]
    if pending:
        rows.append(_row(pending, paths, prompts, completions))
    token_count = sum(len(row.tokens_T) for row in rows)
    return Packing(tuple(rows), sum(len(paths[i]) for i in fitting), unique, token_count - unique, too_long)


def pack_for(
    ranks: int,
    prompts: Sequence[Ints],
    completions: Sequence[Ints],
    *,
    budget: int,
    share: bool = True,
    row_end: int | None = None,
) -> Packing:
    """Packs as `pack` does, into rows that so many processes can divide.

    Args:
        ranks: Number of processes. Where the rows would be fewer, they are divided into that many, as equal as can be.
        prompts: Token ids, one array for each completion; none may be empty.
        completions: Token ids that were sampled after the prompt of the same index; none may be empty.
        budget: Tokens of a row at most.
        share: Whether rows may have branches. Without them, completions share a row only where each continues the
            whole path before it.
        row_end: Tokens of a row above which its layers are computed twice. None: there are none.
    """
    packing = pack(prompts, completions, budget=budget, share=share, row_end=row_end)
    if len(packing.rows) >= min(ranks, len(prompts)):
        return packing
    low = max(len(prompt) + len(completion) - 1 for prompt, completion in zip(prompts, completions, strict=True))
    high = max(low, max(len(row.tokens_T) for row in packing.rows))
    while low < high:  # the smallest budget that needs no more rows than there are ranks
        middle = (low + high) // 2
        if len(pack(prompts, completions, budget=middle, share=share).rows) <= ranks:
            high = middle
        else:
            low = middle + 1
    return pack(prompts, completions, budget=high, share=share)


def common_prefix(a: Tokens, b: Tokens) -> int:
    """Length of the longest common prefix of two token sequences."""
    n = min(len(a), len(b))
    differ = a[:n] != b[:n]
    return int(differ.argmax()) if differ.any() else n


def _row(
    pending: Sequence[tuple[int, int]], paths: Sequence[Tokens], prompts: Sequence[Ints], completions: Sequence[Ints]
) -> Row:
    """One row of the completions in `pending`: (index, how many tokens of its path the row has already)."""
    tokens, depths = [], []
    runs: list[Run] = []
    places, targets, sources, offsets = [], [], [], []
    path_L = np.empty(0, dtype=np.int64)
    length = 0
    for i, have in pending:
        new = len(paths[i]) - have
        goes_on = bool(runs) and have == len(path_L) and path_L[-1] == length - 1
        path_L = np.concatenate([path_L[:have], np.arange(length, length + new)])
        tokens.append(paths[i][have:])
        depths.append(np.arange(have, have + new))
        if goes_on:
            runs[-1] = Run(runs[-1].start, length + new, path_L)
        elif new:
            runs.append(Run(length, length + new, path_L))
        length += new
        count = len(completions[i])
        places.append(path_L[len(prompts[i]) - 1 :])
        targets.append(np.asarray(completions[i], dtype=np.int64))
        sources.append(np.full(count, i))
        offsets.append(np.arange(count))
    return Row(
        np.concatenate(tokens).astype(np.int64),
        np.concatenate(depths),
        tuple(runs),
        np.concatenate(places),
        np.concatenate(targets),
        np.concatenate(sources),
        np.concatenate(offsets),
    )
