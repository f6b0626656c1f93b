"""Products of a few rows with fp32 weights on CPUs, as decoding has them on processors without bf16.

The libraries that vLLM calls are slow for so few rows: half of a decoding step. `art_kernels` multiplies them with a
second copy of the weights in bf16. Weights that bf16 does not hold exactly are left to vLLM; without a compiler, or
with `ART_KERNELS=0`, all are.

Shapes: N tokens, I in, O out, B blocks of C columns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from art_kernels import Kernels, load, pack_linear
from art_parts import harmless, have

FEW = 24
"""Rows up to which the kernel is faster."""

LINEAR = "fp32 products of few rows on CPUs"
PARTS = {LINEAR: ("vllm.model_executor.layers.utils:dispatch_cpu_unquantized_gemm(layer, remove_weight)",)}
CPU_ONLY = (LINEAR,)

Linear = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]


@harmless
def register() -> None:
    """Puts this into vLLM's layers. Called by vLLM in every engine process."""
    from vllm.platforms import current_platform

    if current_platform.is_cpu() and (kernels := load()) and have(LINEAR, PARTS):
        _take_few_rows(kernels)


def _take_few_rows(kernels: Kernels) -> None:
    from vllm.model_executor.layers import utils

    stock_dispatch = utils.dispatch_cpu_unquantized_gemm

    def dispatch(layer: Any, remove_weight: bool) -> None:
        weight = layer.weight.detach()
        fits = not weight.is_meta and weight.dim() == 2 and weight.dtype is torch.float32
        blocks = pack_linear(weight) if fits else None
        stock_dispatch(layer, remove_weight)
        if blocks is not None:
            layer.cpu_linear = with_few_rows(layer.cpu_linear, blocks, kernels)

    utils.dispatch_cpu_unquantized_gemm = dispatch


def with_few_rows(stock_linear: Linear, weight_BIC: torch.Tensor, kernels: Kernels) -> Linear:
    """x Wᵀ + bias: by the kernel for up to FEW rows, and otherwise by what vLLM chose."""

    def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        rows_NI = x.view(-1, x.shape[-1]) if x.is_contiguous() else x
        if rows_NI.dim() != 2 or len(rows_NI) > FEW or rows_NI.stride(1) != 1 or x.dtype is not torch.float32:
            return stock_linear(x, weight, bias)
        y_NO: torch.Tensor = kernels.linear(rows_NI, weight_BIC)
        return (y_NO if bias is None else y_NO.add_(bias)).view(*x.shape[:-1], -1)

    return linear
