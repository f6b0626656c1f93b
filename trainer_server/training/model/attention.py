"""Attention over a packed row: each run attends to its own ancestors and itself, so no T×T mask is ever made.

Runs are cut into tiles; tiles of about the same size are computed together, padded to one another. Query heads that
share a key head are folded into the query length, so that keys and values are never repeated for them. The backward
pass computes the probabilities again, but for those of the first buckets, which are kept. Three matrix products and a
softmax are several times faster on CPUs than torch's fused kernel, which is made for lengths at which scores do not fit
the cache. The trunk of a row, or all of it, may be computed first, without a gradient: the rest, or the tokens that
read something out, then attend to its keys and values.

Registered with transformers as `art_tree`; the layout travels as the keyword argument `tree` of the model's forward.
Shapes: H query heads, K key heads, G = H/K, T tokens, D head size, B tiles of a bucket, N tokens of a tile, L length of
its path.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import torch
from transformers import AttentionInterface, AttentionMaskInterface

from trainer_server.training.model.recurrent import Segments, States
from trainer_server.training.model.tree import Ints, Row, Run
from trainer_server.wire import TrainingError

NAME = "art_tree"
Sinks = torch.Tensor | None
"""A score for each query head that takes part in its softmax and belongs to no token (gpt-oss). They are frozen."""
_TILE = 256
"""Queries of a tile at most: what lies above the diagonal is computed for nothing."""
_BUCKET = 1 << 18
"""Scores of a bucket and head, unless one tile has more: what a cache can hold."""
_WASTE = 1.15
"""A bucket may compute this many times what its tiles need …"""
_CALL = 1 << 13
"""… and this many scores more: about what one call costs."""
_PROBABILITY_BYTES = 1 << 25
"""Bytes of the probabilities of a layer that are kept for the backward pass at most: 32 MiB, 1 GiB for 30 layers. To
compute them again takes a fifth of the time of attention."""


@dataclass(slots=True)
class Trunk:
    """What layers keep of a row's first tokens, without a gradient.

    length: how many tokens. keys_values: by the number of the layer, (1, K, length, D) each. states: of recurrent
    layers.
    """

    length: int
    keys_values: dict[int, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)
    states: States = field(default_factory=dict)


_HARMLESS = {"position_ids", "use_cache", "cache_position", "output_attentions", "is_causal", "position_embeddings"}
"""Arguments that change nothing about attention over a row."""


@dataclass(slots=True)
class Bucket:
    """Tiles that are computed together.

    query_M: places of the queries among the tokens that are computed, B·N of them, tile after tile; padding repeats a
    valid place. key_J: places of the paths in the whole row, B·L. valid_P: which of the B·N
    are no padding. depth_BN: depth of the queries. length_B: lengths of the paths; keys beyond are padding.
    """

    size: int
    query_M: torch.Tensor
    key_J: torch.Tensor
    valid_P: torch.Tensor
    depth_BN: torch.Tensor
    length_B: torch.Tensor
    shared_keys: int
    """Keys, counted from the root, that every query of the bucket sees."""
    masks: dict[tuple[int | None, torch.dtype], torch.Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, tiles: list[Run], row: Row, device: torch.device, index_T: Ints) -> Bucket:
        """index_T: where each token of the row is among those that are computed."""
        n, length = max(tile.stop - tile.start for tile in tiles), max(len(tile.path_L) for tile in tiles)
        query = torch.stack([torch.arange(n).clamp(max=tile.stop - tile.start - 1) + tile.start for tile in tiles])
        valid = torch.stack([torch.arange(n) < tile.stop - tile.start for tile in tiles])
        key = torch.zeros(len(tiles), length, dtype=torch.long)
        for at, tile in enumerate(tiles):
            key[at, : len(tile.path_L)] = torch.from_numpy(tile.path_L)
        depth = torch.from_numpy(row.depth_T)[query]
        lengths = torch.tensor([len(tile.path_L) for tile in tiles])
        return cls(
            size=len(tiles),
            query_M=torch.from_numpy(index_T)[query.flatten()].to(device),
            key_J=key.flatten().to(device),
            valid_P=valid.flatten().nonzero()[:, 0].to(device),
            depth_BN=depth.to(device),
            length_B=lengths.to(device),
            shared_keys=int(depth.min()) + 1,
        )

    def mask_(self, score_BKGNL: torch.Tensor, window: int | None) -> None:
        """Puts −∞ where nothing is visible. A path is indexed by depth: a window is one of positions."""
        start = self.shared_keys if window is None else 0
        if (window, score_BKGNL.dtype) not in self.masks:
            depth_L = torch.arange(start, score_BKGNL.shape[-1], device=score_BKGNL.device)
            depth_BN1 = self.depth_BN[:, :, None]
            visible = (depth_L <= depth_BN1) & (depth_L < self.length_B[:, None, None])
            if window is not None:
                visible &= depth_BN1 - depth_L < window
            mask = torch.zeros(visible.shape, dtype=score_BKGNL.dtype, device=visible.device)
            self.masks[window, score_BKGNL.dtype] = mask.masked_fill_(~visible, float("-inf"))[:, None, None]
        score_BKGNL[..., start:].add_(self.masks[window, score_BKGNL.dtype])

    def fold(self, x_THD: torch.Tensor, heads: int) -> torch.Tensor:
        """Queries, or gradients of their outputs → (B·K, G·N, D)."""
        selection = x_THD.index_select(0, self.query_M).view(
            self.size, -1, heads, x_THD.shape[1] // heads, x_THD.shape[2]
        )
        return selection.permute(0, 2, 3, 1, 4).reshape(self.size * heads, -1, x_THD.shape[2])

    def unfold(self, x: torch.Tensor, heads: int) -> torch.Tensor:
        """(B·K, G·N, D) → (P, H, D), without padding."""
        n = self.depth_BN.shape[1]
        x = x.view(self.size, heads, -1, n, x.shape[-1]).permute(0, 3, 1, 2, 4)
        return x.reshape(self.size * n, -1, x.shape[-1]).index_select(0, self.valid_P)

    def paths(self, x_TKD: torch.Tensor) -> torch.Tensor:
        """Keys or values → (B·K, L, D)."""
        selection = x_TKD.index_select(0, self.key_J).view(self.size, -1, *x_TKD.shape[1:])
        return selection.transpose(1, 2).reshape(-1, selection.shape[1], selection.shape[3])

    def probabilities(
        self, q: torch.Tensor, k: torch.Tensor, heads: int, window: int | None, scale: float, sinks_H: Sinks
    ) -> torch.Tensor:
        """(B·K, G·N, L). A row sums to 1, or to less where a sink takes its part."""
        score = torch.baddbmm(q.new_empty(()), q, k.transpose(1, 2), beta=0.0, alpha=scale)
        self.mask_(score.view(self.size, heads, -1, self.depth_BN.shape[1], k.shape[1]), window)
        if sinks_H is None:
            return score.softmax(-1)
        sink_KG1 = sinks_H.to(score.dtype).view(heads, -1, 1).expand(-1, -1, self.depth_BN.shape[1])
        sink = sink_KG1.reshape(heads, -1, 1).repeat(self.size, 1, 1)
        return torch.cat([score, sink], -1).softmax(-1)[..., :-1]


@dataclass(slots=True)
class Layout:
    """How a row is attended to, or a part of it: what is behind its trunk, or some of its tokens."""

    padding: ClassVar[int] = 0
    """Tokens that a row is padded with."""
    buckets: list[Bucket]
    segments: Segments
    """The same for recurrent layers."""
    trunk: int = 0
    """Tokens from the root whose keys and values have no gradient."""
    trunk_cache: Trunk | None = None
    """What layers kept of the tokens that were computed before."""
    place_T: torch.Tensor | None = None
    """Places in the row of the tokens that are computed. None: all behind the trunk."""
    pass_cache: Trunk | None = None
    """Where this pass puts what layers keep of its tokens; None: nowhere."""

    @classmethod
    def of(
        cls, row: Row, device: torch.device, trunk_cache: Trunk | None = None, *, pass_cache: Trunk | None = None
    ) -> Layout:
        """The layout of a row.

        Args:
            row: The row.
            device: Where it is computed.
            trunk_cache: What a pass over its trunk, or the beginning of it, has kept: the rest is laid out. None: all
                of it is.
            pass_cache: Where the pass puts what layers keep; None: nowhere.
        """
        trunk = 0 if trunk_cache is None else trunk_cache.length
        runs = [Run(max(run.start, trunk), run.stop, run.path_L) for run in row.runs if run.stop > trunk]
        before = None if trunk_cache is None else trunk_cache.states
        segments = Segments(row, device, start=trunk, before=before)
        index_T = np.arange(len(row.tokens_T)) - trunk
        return cls(_buckets(runs, row, device, index_T), segments, trunk, trunk_cache, pass_cache=pass_cache)

    @classmethod
    def of_trunk(cls, row: Row, device: torch.device, length: int) -> Layout:
        """The layout of a pass over the first tokens of a row's trunk, of which layers keep what the rest needs."""
        kept, root = Trunk(length), Run(0, length, np.arange(length))
        buckets = _buckets([root], row, device, np.arange(length))
        return cls(buckets, Segments(row, device, stop=length, after=kept.states), pass_cache=kept)

    @classmethod
    def of_places(cls, row: Row, device: torch.device, place_T: Ints, trunk: int, cache: Trunk) -> Layout:
        """The layout of some tokens of a row, which attend to one another and, without a gradient, to all others.

        Args:
            row: The row.
            device: Where it is computed.
            place_T: Places of the tokens, ascending.
            trunk: Tokens from the root of which none is among them.
            cache: What a pass over the whole row has kept.
        """
        index_T = np.zeros(len(row.tokens_T), dtype=np.int64)
        index_T[place_T] = np.arange(len(place_T))
        runs = []
        for run in row.runs:
            own = place_T[(place_T >= run.start) & (place_T < run.stop)]
            for part in np.split(own, np.flatnonzero(np.diff(own) > 1) + 1) if len(own) else []:
                stop = int(part[-1]) + 1
                runs.append(Run(int(part[0]), stop, run.path_L[: len(run.path_L) - (run.stop - stop)]))
        return cls(
            _buckets(runs, row, device, index_T),
            Segments(row, device),
            trunk,
            cache,
            torch.from_numpy(place_T).to(device),
        )


def _buckets(runs: Sequence[Run], row: Row, device: torch.device, index_T: Ints) -> list[Bucket]:
    """The tiles of runs. index_T: see `Bucket.of`."""
    tiles = [tile for run in runs for tile in _tiles(run)]
    return [Bucket.of(alike, row, device, index_T) for alike in _alike(tiles)]


def _tiles(run: Run) -> list[Run]:
    """A run in pieces of at most `_TILE` tokens, about equal."""
    count = -(-(run.stop - run.start) // _TILE)
    edges = [run.start + (run.stop - run.start) * at // count for at in range(count + 1)]
    return [Run(start, stop, run.path_L[: len(run.path_L) - (run.stop - stop)]) for start, stop in pairwise(edges)]


def _alike(tiles: list[Run]) -> list[list[Run]]:
    """Sorts tiles into buckets whose padding is bearable."""
    buckets: list[list[Run]] = []
    need = longest = 0
    for tile in sorted(tiles, key=lambda tile: (tile.stop - tile.start, len(tile.path_L))):
        n, cost = tile.stop - tile.start, (tile.stop - tile.start) * len(tile.path_L)
        longest = max(longest, len(tile.path_L))
        padded_cost = (len(buckets[-1]) + 1) * n * longest if buckets else 0
        if buckets and padded_cost <= _WASTE * (need + cost) + _CALL and padded_cost <= _BUCKET:
            buckets[-1].append(tile)
            need += cost
        else:
            buckets.append([tile])
            need, longest = cost, len(tile.path_L)
    return buckets


class _TreeAttention(torch.autograd.Function):
    """(q_THD, k_TKD, v_TKD) → (T, H, D). Gradients of keys and values are summed over branches in fp32. Behind a trunk,
    keys and values are those of the whole row; those of the trunk have no gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        q_THD: torch.Tensor,
        k_TKD: torch.Tensor,
        v_TKD: torch.Tensor,
        tree: Layout,
        window: int | None,
        scale: float,
        sinks_H: Sinks,
    ) -> torch.Tensor:
        heads = k_TKD.shape[1]
        out_THD = q_THD.new_empty(*q_THD.shape[:2], v_TKD.shape[2])
        probabilities: list[torch.Tensor] = []
        room = _PROBABILITY_BYTES if any(ctx.needs_input_grad) else 0
        for bucket in tree.buckets:
            q, k, v = bucket.fold(q_THD, heads), bucket.paths(k_TKD), bucket.paths(v_TKD)
            p = bucket.probabilities(q, k, heads, window, scale, sinks_H)
            out = bucket.unfold(p @ v, heads)
            out_THD.index_copy_(0, bucket.query_M.index_select(0, bucket.valid_P), out)
            room -= p.nbytes
            if room >= 0:
                probabilities.append(p)
        ctx.save_for_backward(q_THD, k_TKD, v_TKD, *probabilities)
        ctx.given = tree, window, scale, sinks_H
        return out_THD

    @staticmethod
    def backward(ctx: Any, grad_THD: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        q_THD, k_TKD, v_TKD, *probabilities = ctx.saved_tensors
        tree, window, scale, sinks_H = ctx.given
        heads = k_TKD.shape[1]
        dq_THD = torch.empty_like(q_THD)
        dk_TKD, dv_TKD = (torch.zeros_like(x_TKD, dtype=torch.float32) for x_TKD in (k_TKD, v_TKD))
        for at, bucket in enumerate(tree.buckets):
            q, k, v = bucket.fold(q_THD, heads), bucket.paths(k_TKD), bucket.paths(v_TKD)
            grad = bucket.fold(grad_THD, heads)
            real = grad.new_zeros(bucket.query_M.shape).index_fill_(0, bucket.valid_P, 1.0)
            grad.view(bucket.size, -1, bucket.depth_BN.shape[1], grad.shape[-1]).mul_(
                real.view(bucket.size, 1, -1, 1)
            )  # padding repeats a query: its gradient must not be counted twice
            p = (
                probabilities[at]
                if at < len(probabilities)
                else bucket.probabilities(q, k, heads, window, scale, sinks_H)
            )
            dp = grad @ v.transpose(1, 2)
            ds = torch._softmax_backward_data(dp, p, -1, p.dtype)
            dq = bucket.unfold(ds @ k, heads).mul_(scale)
            dq_THD.index_copy_(0, bucket.query_M.index_select(0, bucket.valid_P), dq)
            own_J = bucket.key_J.view(bucket.size, -1)[:, tree.trunk :].flatten()
            ds_of_own, p_of_own = (x[..., tree.trunk :].transpose(1, 2) for x in (ds, p))
            for total, part, factor in ((dk_TKD, ds_of_own @ q, scale), (dv_TKD, p_of_own @ grad, 1)):
                part = part.view(bucket.size, heads, -1, part.shape[-1]).transpose(1, 2)
                total.index_add_(0, own_J, part.reshape(-1, *total.shape[1:]).float(), alpha=factor)
        return dq_THD, dk_TKD.to(k_TKD.dtype), dv_TKD.to(v_TKD.dtype), None, None, None, None


def register(name: str, attend: Callable[..., torch.Tensor]) -> Callable[..., tuple[torch.Tensor, None]]:
    """Registers an attention function with transformers, which gets the layout as the keyword argument `tree`.

    Args:
        name: Of the function, as a model's configuration names it.
        attend: (module, query, key, value, tree, window, scale, sinks) → (1, T, H, D); query is (1, H, T, D), key and
            value are (1, K, T, D), sinks is (H,). window, scale and sinks are None for none, for 1/√D and for none.

    Returns:
        The function. It raises TrainingError for whatever it would have to leave out.
    """

    def tree_attention(
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        *,
        tree: Any = None,
        scaling: float | None = None,
        dropout: float = 0.0,
        sliding_window: int | None = None,
        s_aux: Sinks = None,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, None]:
        if tree is None:
            raise TrainingError("the model does not pass its keyword arguments on to attention; it cannot be packed")
        if not torch.compiler.is_compiling():  # it would compile each layer anew, and was tried before
            _refuse(module, attention_mask, dropout, sliding_window, kwargs)
        return attend(module, query, key, value, tree, sliding_window, scaling, s_aux), None

    AttentionInterface.register(name, tree_attention)
    AttentionMaskInterface.register(name, _no_mask)
    return tree_attention


def _attend(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    tree: Layout,
    window: int | None,
    scale: float | None,
    sinks_H: Sinks,
) -> torch.Tensor:
    if tree.trunk_cache is not None:
        both = zip(tree.trunk_cache.keys_values[module.layer_idx], (key, value), strict=True)
        if tree.place_T is None:
            key, value = (torch.cat([before, own], 2) for before, own in both)
        else:
            key, value = (row.index_copy(2, tree.place_T, own) for row, own in both)
    if tree.pass_cache is not None:
        tree.pass_cache.keys_values[module.layer_idx] = key, value
    q_THD, k_TKD, v_TKD = (heads[0].transpose(0, 1) for heads in (query, key, value))
    scale = q_THD.shape[-1] ** -0.5 if scale is None else scale
    out: torch.Tensor = _TreeAttention.apply(q_THD, k_TKD, v_TKD, tree, window, scale, sinks_H)
    return out[None]


def _refuse(
    module: Any, attention_mask: torch.Tensor | None, dropout: float, window: int | None, kwargs: dict[str, Any]
) -> None:
    """Raises TrainingError for a model that asks for more than a scale, a window and sinks (soft-capping, a mask of its
    own), or whose sliding layers have their window only in the mask: masks are not made here."""
    extras = [key for key, value in kwargs.items() if value is not None and value is not False and key not in _HARMLESS]
    extras += ["attention_mask"] if attention_mask is not None else []
    extras += ["dropout"] if dropout else []
    if extras:
        raise TrainingError(f"attention with {', '.join(extras)} is not supported in packed rows")
    layer_window = getattr(module.config, "sliding_window", None)
    kinds = getattr(module.config, "layer_types", None)
    if kinds is not None and kinds[module.layer_idx] != "sliding_attention":
        layer_window = None
    if window != layer_window:
        raise TrainingError(f"layer {module.layer_idx} has a window of {layer_window} tokens, but asks for {window}")


def _no_mask(*args: Any, **kwargs: Any) -> None:
    """The layout says what is visible; a T×T mask would only cost memory."""
    return None


tree_attention = register(NAME, _attend)
