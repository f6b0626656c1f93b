"""SwiGLU's activation and the rotary position embedding on CPUs, each in one pass, with PyTorch's bits.

vLLM computes both by about thirty small PyTorch operators a layer, which read and write everything anew: a tenth of a
pass, be it of many tokens or of few. Without a compiler it goes on to do so; also with `ART_KERNELS=0`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from art_kernels import NUMBERS, Kernels, load
from art_parts import harmless, have

SILU, ROTARY = "SwiGLU in one pass", "rotary embedding in one pass"
_ROTARY = "vllm.model_executor.layers.rotary_embedding.base:RotaryEmbedding"
PARTS = {
    SILU: ("vllm.model_executor.layers.activation:SiluAndMul.forward_native(x)",),
    ROTARY: (
        f"{_ROTARY}.forward_native(positions, query, key)",
        f"{_ROTARY}._match_cos_sin_cache_dtype(query)",
        f"{_ROTARY}.self.head_size",
        f"{_ROTARY}.self.is_neox_style",
    ),
}
CPU_ONLY = (SILU, ROTARY)

QueriesKeys = tuple[torch.Tensor, torch.Tensor | None]
"""Queries and keys."""


@harmless
def register() -> None:
    """Puts this into vLLM's layers. Called by vLLM in every engine process."""
    from vllm.platforms import current_platform

    kernels = load() if current_platform.is_cpu() else None
    if kernels is None:
        return
    if have(SILU, PARTS):
        _fuse_silu(kernels)
    if have(ROTARY, PARTS):
        _fuse_rotary(kernels)


def _fuse_silu(kernels: Kernels) -> None:
    from vllm.model_executor.layers.activation import SiluAndMul

    stock_silu: Callable[[torch.Tensor], torch.Tensor] = SiluAndMul.forward_native

    def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
        if x.dtype not in NUMBERS or not x.is_contiguous():
            return stock_silu(x)
        y: torch.Tensor = kernels.silu_mul(x)
        return y

    SiluAndMul.forward_native = staticmethod(silu_and_mul)


def _fuse_rotary(kernels: Kernels) -> None:
    from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbedding

    stock_rotate: Callable[..., QueriesKeys] = RotaryEmbedding.forward_native

    def rotate(self: Any, positions: torch.Tensor, query: torch.Tensor, key: torch.Tensor | None = None) -> QueriesKeys:
        if not (self.is_neox_style and plain(query) and (key is None or plain(key)) and positions.dim() == 1):
            return stock_rotate(self, positions, query, key)
        angles = self._match_cos_sin_cache_dtype(query)
        kernels.rotate(positions, query, key, self.head_size, angles)
        return query, key

    RotaryEmbedding.forward_native = rotate


def plain(rows: torch.Tensor) -> bool:
    """Whether the kernels take these: bf16 or fp32 in contiguous rows."""
    return rows.dtype in NUMBERS and rows.dim() == 2 and rows.stride(1) == 1
