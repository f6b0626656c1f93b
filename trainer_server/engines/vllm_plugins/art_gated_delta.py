"""A prompt of one token, of a model with Gated DeltaNet, ends no vLLM on CPUs.

A single token of a wider row counts as contiguous whatever the distance to the next token would be, and vLLM's kernel
for the convolution takes no distance but the number of channels. It gets that, which changes no number.

Shapes: C channels, T tokens.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from art_parts import harmless, have

FEATURE = "Gated DeltaNet of one token on CPUs"
_MODULE = "vllm.model_executor.layers.mamba.ops.cpu.gdn_attention"
PARTS = {FEATURE: (f"{_MODULE}:_causal_conv1d_fwd_cpu",)}
CPU_ONLY = (FEATURE,)


def by_channels(x_CT: torch.Tensor) -> torch.Tensor:
    """The same numbers, with C as the distance of two tokens where there is but one."""
    channels, tokens = x_CT.shape
    return x_CT if tokens > 1 else x_CT.as_strided((channels, tokens), (1, channels))


@harmless
def register() -> None:
    """Puts this into vLLM. Called by vLLM in every process."""
    from vllm.platforms import current_platform

    if not current_platform.is_cpu() or not have(FEATURE, PARTS):
        return
    from vllm.model_executor.layers.mamba.ops.cpu import gdn_attention

    convolve = gdn_attention._causal_conv1d_fwd_cpu

    @functools.wraps(convolve)
    def convolve_by_channels(*, x: torch.Tensor, **options: Any) -> torch.Tensor:
        result: torch.Tensor = convolve(x=by_channels(x), **options)
        return result

    gdn_attention._causal_conv1d_fwd_cpu = convolve_by_channels
