"""Attention over a packed row: each run attends to its own ancestors and itself, so no T×T mask is ever made.

Runs of about the same size are computed together, padded to one another. Query heads that share a key head are folded
into the query length, so that keys and values are never repeated for them.

Registered with transformers as `art_tree`; the layout travels as the keyword argument `tree` of the model's forward.
Shapes: H query heads, K key heads, G = H/K, T tokens, D head size, B runs of a bucket, N tokens of a run, L length of
its path.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from transformers import AttentionInterface, AttentionMaskInterface, PretrainedConfig

from trainer_server.training.tree import Row, Run
from trainer_server.wire import TrainingError

NAME = "art_tree"
_PACKABLE = {"full_attention", "sliding_attention"}
_WASTE = 1.4
"""A bucket may compute this many times what its runs need; one call more costs about as much."""


@dataclass(slots=True)
class Bucket:
    """Runs that are computed together.

    query_BN, key_BL: places in the row; padding repeats a valid place. depth_BN: depth of the queries.
    length_B: lengths of the paths; keys beyond are padding.
    """

    query_BN: torch.Tensor
    key_BL: torch.Tensor
    depth_BN: torch.Tensor
    length_B: torch.Tensor
    masks: dict[tuple[int | None, torch.dtype], torch.Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, runs: list[Run], row: Row, device: torch.device) -> Bucket:
        n, length = max(run.stop - run.start for run in runs), max(len(run.path_L) for run in runs)
        query = torch.stack([torch.arange(n).clamp(max=run.stop - run.start - 1) + run.start for run in runs])
        key = torch.zeros(len(runs), length, dtype=torch.long)
        for at, run in enumerate(runs):
            key[at, : len(run.path_L)] = torch.from_numpy(run.path_L)
        depth = torch.from_numpy(row.depth_T)[query]
        lengths = torch.tensor([len(run.path_L) for run in runs])
        return cls(query.to(device), key.to(device), depth.to(device), lengths.to(device))

    def mask(self, window: int | None, groups: int, dtype: torch.dtype) -> torch.Tensor:
        """(B, 1, G·N, L), 0 where visible, −∞ elsewhere. A path is indexed by depth: a window is one of positions."""
        if (window, dtype) not in self.masks:
            depth_L = torch.arange(self.key_BL.shape[1], device=self.key_BL.device)
            depth_BN1 = self.depth_BN[:, :, None]
            seen = (depth_L <= depth_BN1) & (depth_L < self.length_B[:, None, None])
            if window is not None:
                seen &= depth_BN1 - depth_L < window
            mask = torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, float("-inf"))
            self.masks[window, dtype] = mask.repeat(1, groups, 1)[:, None]
        return self.masks[window, dtype]


@dataclass(slots=True)
class Layout:
    """How a row is attended to. root: length of the first run, which is plainly causal; 0 if there is no such run.

    order_T: for every place of the row, where its output is found after the root's and the buckets' outputs.
    """

    root: int
    buckets: list[Bucket]
    order_T: torch.Tensor

    @classmethod
    def of(cls, row: Row, device: torch.device) -> Layout:
        first, *rest = row.runs
        buckets = [Bucket.of(runs, row, device) for runs in _alike(rest)]
        order = torch.empty(len(row.tokens_T), dtype=torch.long, device=device)
        order[: first.stop] = torch.arange(first.stop, device=device)
        at = first.stop
        for bucket in buckets:
            places = bucket.query_BN.flatten()
            order[places.flip(0)] = torch.arange(at, at + len(places), device=device).flip(0)
            at += len(places)
        return cls(first.stop, buckets, order)


def _alike(runs: list[Run]) -> list[list[Run]]:
    """Sorts runs into buckets whose padding is bearable."""
    buckets: list[list[Run]] = []
    needed = 0
    for run in sorted(runs, key=lambda run: (run.stop - run.start, len(run.path_L))):
        cost = (run.stop - run.start) * len(run.path_L)
        if buckets:
            bucket = [*buckets[-1], run]
            padded = len(bucket) * (run.stop - run.start) * max(len(one.path_L) for one in bucket)
            if padded <= _WASTE * (needed + cost):
                buckets[-1], needed = bucket, needed + cost
                continue
        buckets.append([run])
        needed = cost
    return buckets


def tree_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    tree: Layout | None = None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' attention function. query (1, H, T, D), key and value (1, K, T, D) → (1, T, H, D)."""
    if tree is None:
        raise TrainingError("the model does not pass its keyword arguments on to attention; it cannot be packed")
    if kwargs.get("softcap") is not None or kwargs.get("s_aux") is not None or dropout:
        raise TrainingError(
            "attention with logit soft-capping, sinks or dropout is not supported by the packed trainer"
        )
    q_HTD, k_KTD, v_KTD = query[0], key[0], value[0]
    heads, groups = q_HTD.shape[0], q_HTD.shape[0] // k_KTD.shape[0]
    outputs = [_root(q_HTD, k_KTD, v_KTD, tree.root, groups, sliding_window, scaling)]
    for bucket in tree.buckets:
        count, n = bucket.query_BN.shape
        q = q_HTD.index_select(1, bucket.query_BN.flatten()).view(heads // groups, groups, count, n, -1)
        q = q.permute(2, 0, 1, 3, 4).reshape(count, heads // groups, groups * n, -1)
        k, v = (
            one.index_select(1, bucket.key_BL.flatten()).view(heads // groups, count, -1, one.shape[-1]).transpose(0, 1)
            for one in (k_KTD, v_KTD)
        )
        mask = bucket.mask(sliding_window, groups, q.dtype)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scaling)
        outputs.append(out.view(count, heads, n, -1).transpose(1, 2).reshape(count * n, heads, -1))
    return torch.cat(outputs).index_select(0, tree.order_T)[None], None


def _root(
    q_HTD: torch.Tensor, k_KTD: torch.Tensor, v_KTD: torch.Tensor, n: int, groups: int, window: int | None,
    scaling: float | None,
) -> torch.Tensor:  # fmt: skip
    """The first run, plainly causal → (N, H, D)."""
    k, v = (one[:, :n].repeat_interleave(groups, 0) if groups > 1 else one[:, :n] for one in (k_KTD, v_KTD))
    mask = None
    if window is not None and n > window:
        place = torch.arange(n, device=k.device)
        mask = (place <= place[:, None]) & (place[:, None] - place < window)
    out: torch.Tensor = F.scaled_dot_product_attention(
        q_HTD[None, :, :n], k[None], v[None], attn_mask=mask, is_causal=mask is None, scale=scaling
    )
    return out[0].transpose(0, 1)


def packable(config: PretrainedConfig) -> bool:
    """Whether branches of a tree stay apart in this architecture: plain or sliding attention in every layer.

    Recurrent and linear-attention layers carry state from token to token of a row, whatever the mask says.
    """
    kinds = getattr(config, "layer_types", None)
    if kinds is not None:
        return set(kinds) <= _PACKABLE
    recurrent = ("mamba", "rwkv", "ssm", "linear_attn", "conv_kernel", "recurrent")
    return not any(word in key for key in config.to_dict() for word in recurrent)


def _no_mask(*args: Any, **kwargs: Any) -> None:
    """The layout says what is visible; a T×T mask would only cost memory."""
    return None


AttentionInterface.register(NAME, tree_attention)
AttentionMaskInterface.register(NAME, _no_mask)
