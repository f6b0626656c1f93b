"""An adapter for a part of a packed layer is applied where that part is not the first.

vLLM packs layers that read the same input, such as `in_proj_qkv` and `in_proj_z` of Qwen3.5, of which the first has
three slices. Of an adapter that lacks one part, stock vLLM takes all further slices for that part's, and raises an
error at the next. Here the missing part gets a B of zeros, with the rows that the others leave.

Shapes: R rank, I in, O out of a part.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from art_parts import harmless, have

FEATURE = "adapters for a part of a packed layer"
_LAYER = "vllm.lora.layers.column_parallel_linear:MergedColumnParallelLinearWithLoRA"
PARTS = {FEATURE: (f"{_LAYER}.expand_packed_lora(lora_a, lora_b)", f"{_LAYER}.self.output_sizes")}
CPU_ONLY = ()

Halves = list[torch.Tensor | None]
"""A (R, I) or B (O, R) of each part of a layer; None: the adapter lacks it."""


def with_zeros(lora_a: Halves, lora_b: Halves, sizes: Sequence[int]) -> tuple[Halves, Halves]:
    """A and B of a layer of which an adapter lacks one part, with zeros for that part.

    sizes: outputs of each slice of the layer.
    """
    there = [b for b in lora_b if b is not None]
    if len(there) != len(lora_b) - 1:
        return lora_a, lora_b
    rows = sum(sizes) - sum(len(b) for b in there)
    like = next(a for a in lora_a if a is not None)
    return (
        [torch.zeros_like(like) if b is None else a for a, b in zip(lora_a, lora_b, strict=True)],
        [there[0].new_zeros(rows, there[0].shape[1]) if b is None else b for b in lora_b],
    )


@harmless
def register() -> None:
    """Puts this into vLLM. Called by vLLM in every engine process."""
    if not have(FEATURE, PARTS):
        return
    from vllm.lora.layers.column_parallel_linear import MergedColumnParallelLinearWithLoRA as Layer

    expand = Layer.expand_packed_lora

    @functools.wraps(expand)
    def expand_packed_lora(self: Any, lora_a: Halves, lora_b: Halves) -> Any:
        return expand(self, *with_zeros(lora_a, lora_b, self.output_sizes))

    Layer.expand_packed_lora = expand_packed_lora
