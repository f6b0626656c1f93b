"""Which architectures may share a row between completions: told from the configuration, then tried on the model itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from transformers import PretrainedConfig

_PACKABLE = {"full_attention", "sliding_attention"}
_RECURRENT = ("mamba", "rwkv", "ssm", "linear_attn", "linear_conv", "conv_kernel", "conv_l_cache", "recurrent", "xlstm")
_BY_LENGTH = {"dynamic", "longrope"}
"""Rotary embeddings that depend on the longest position of a row: a short branch beside a long one is another model."""


def packable(config: PretrainedConfig) -> bool:
    """Whether branches of a tree stay apart in this architecture: plain or sliding attention in every layer.

    Recurrent and linear-attention layers carry state from token to token of a row, whatever the mask says.
    """
    kinds = getattr(config, "layer_types", None)
    if kinds is not None and not set(kinds) <= _PACKABLE:
        return False
    keys = [key.lower() for key in config.to_dict()]
    if any(word in key for key in keys for word in _RECURRENT) or getattr(config, "use_bidirectional_attention", False):
        return False
    return not any(kind in _BY_LENGTH for kind in _rope_kinds(getattr(config, "rope_parameters", None)))


def _rope_kinds(parameters: Any) -> Iterator[str]:
    """`rope_type` of the one kind of layers, or of each kind."""
    if isinstance(parameters, dict):
        if "rope_type" in parameters:
            yield parameters["rope_type"]
        for value in parameters.values():
            yield from _rope_kinds(value)
