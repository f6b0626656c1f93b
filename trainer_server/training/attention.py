"""Attention over a packed row: each run attends to its own ancestors and itself, so no T×T mask is ever made.

Registered with transformers as `art_tree`; the layout travels as the keyword argument `tree` of the model's forward.
Shapes: B = 1 row, H query heads, K key heads, T tokens, D head size, N tokens of a run, L length of its path.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from transformers import AttentionInterface, AttentionMaskInterface, PretrainedConfig

from trainer_server.training.tree import Row
from trainer_server.wire import TrainingError

NAME = "art_tree"
_PACKABLE = {"full_attention", "sliding_attention"}


@dataclass(slots=True)
class Layout:
    """A row's runs as index tensors, and the masks that its layers share."""

    runs: list[tuple[int, int, torch.Tensor]]
    masks: dict[tuple[int, int | None], torch.Tensor | None]

    @classmethod
    def of(cls, row: Row, device: torch.device) -> Layout:
        return cls([(run.start, run.stop, torch.from_numpy(run.path_L).to(device)) for run in row.runs], {})

    def mask(self, index: int, window: int | None) -> torch.Tensor | None:
        """(N, L), True where visible. A path is indexed by depth, so a sliding window is one in position space."""
        if (index, window) not in self.masks:
            start, stop, path_L = self.runs[index]
            depth_L = torch.arange(len(path_L), device=path_L.device)
            depth_N = depth_L[len(path_L) - (stop - start) :, None]
            seen_NL = depth_L <= depth_N
            if window is not None:
                seen_NL &= depth_N - depth_L < window
            self.masks[index, window] = None if bool(seen_NL.all()) else seen_NL
        return self.masks[index, window]


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
    groups = query.shape[1] // key.shape[1]
    parts = []
    for index, (start, stop, path_L) in enumerate(tree.runs):
        whole = start == 0 and len(path_L) == stop  # its path is the head of the row: no gather
        k = key[:, :, :stop] if whole else key.index_select(2, path_L)
        v = value[:, :, :stop] if whole else value.index_select(2, path_L)
        if groups > 1:
            k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        mask = None if whole and sliding_window is None else tree.mask(index, sliding_window)
        parts.append(
            F.scaled_dot_product_attention(
                query[:, :, start:stop], k, v, attn_mask=mask, is_causal=whole and mask is None and stop > 1,
                scale=scaling,
            )
        )  # fmt: skip
    return torch.cat(parts, dim=2).transpose(1, 2).contiguous(), None


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
