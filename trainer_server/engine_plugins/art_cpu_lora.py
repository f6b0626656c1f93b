"""LoRA in vLLM on CPUs: one matmul per distinct adapter of a batch.

Stock vLLM gathers a copy of the adapter's matrices for every token, and reads slot −1, "no adapter", as the last slot.
Here the tokens of a batch are grouped by adapter once per forward pass, every linear layer then takes two small matmuls
per group, and tokens of base requests get nothing. `ART_CPU_LORA=0` leaves vLLM as it is.

This folder goes on vLLM's PYTHONPATH, with the entry point in the dist-info beside this file.
Shapes: N tokens, I in, O out, R rank, S slots.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch

Group = tuple[int, torch.Tensor | slice]
"""A slot ≥ 0 and the rows of the batch that use it: a slice where they are contiguous, else their indices."""

_groups: dict[int, tuple[int, list[Group]]] = {}
"""By address of a batch's index tensor: its number of tokens and its groups."""


def group_by_slot(slots_N: Sequence[int]) -> list[Group]:
    """Groups rows by slot, leaving out those without an adapter (slot −1)."""
    runs: dict[int, list[tuple[int, int]]] = {}
    start = 0
    for row in range(1, len(slots_N) + 1):
        if row == len(slots_N) or slots_N[row] != slots_N[start]:
            if slots_N[start] >= 0:
                runs.setdefault(slots_N[start], []).append((start, row))
            start = row
    return [
        (slot, slice(*spans[0]) if len(spans) == 1 else torch.cat([torch.arange(*span) for span in spans]))
        for slot, spans in runs.items()
    ]


def lora_linear(
    y_NO: torch.Tensor,
    x_NI: torch.Tensor,
    a_SRI: Sequence[torch.Tensor],
    b_SOR: Sequence[torch.Tensor],
    scale: float,
    groups: Sequence[Group],
) -> None:
    """Adds scale · (x Aᵀ) Bᵀ to y, in place, each row with its own adapter.

    a_SRI, b_SOR: one pair per slice of a fused layer (q, k, v); the outputs of the slices lie side by side in y.
    """
    width = [b.shape[-2] for b in b_SOR]
    for slot, rows in groups:
        x = x_NI[rows]
        a_RI = torch.cat([a[slot].flatten(0, -2) for a in a_SRI]) if len(a_SRI) > 1 else a_SRI[0][slot].flatten(0, -2)
        low_NR = x @ a_RI.to(x.dtype).T
        if scale != 1.0:
            low_NR = low_NR * scale
        left = at = 0
        for b, out in zip(b_SOR, width, strict=True):
            b_OR = b[slot].flatten(0, -2).to(x.dtype)
            delta = low_NR[:, at : at + b_OR.shape[1]] @ b_OR.T
            if isinstance(rows, slice):
                y_NO[rows, left : left + out] += delta
            else:
                y_NO[:, left : left + out].index_add_(0, rows, delta.to(y_NO.dtype))
            left, at = left + out, at + b_OR.shape[1]


def _op(
    y: torch.Tensor, x: torch.Tensor, a: list[torch.Tensor], b: list[torch.Tensor], scale: float, slots: torch.Tensor
) -> None:
    count, groups = _groups[slots.data_ptr()]
    y, x = y.view(-1, y.shape[-1]), x.view(-1, x.shape[-1])
    lora_linear(y[:count], x[:count], a, b, scale, groups)


def register() -> None:
    """Puts the grouped computation into vLLM's CPU wrapper. Called by vLLM in every engine process."""
    if os.environ.get("ART_CPU_LORA") == "0":
        return
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU

    # An operator of its own, because torch.compile would bake one batch's groups into the graph.
    library = torch.library.Library("art", "FRAGMENT")
    library.define("lora_linear(Tensor(a!) y, Tensor x, Tensor[] a, Tensor[] b, float scale, Tensor slots) -> ()")
    library.impl("lora_linear", _op, "CPU")
    library.impl("lora_linear", lambda *args: None, "Meta")
    register.library = library  # type: ignore[attr-defined]  # an operator lives as long as its library

    update = PunicaWrapperCPU.update_metadata

    def update_metadata(self: Any, *args: Any, **kwargs: Any) -> None:
        update(self, *args, **kwargs)
        slots = self.token_lora_indices
        _groups[self._token_lora_indices.data_ptr()] = (len(slots), group_by_slot(slots.tolist()))

    def add_lora_linear(
        self: Any,
        y: torch.Tensor,
        x: torch.Tensor,
        lora_a_stacked: tuple[torch.Tensor, ...],
        lora_b_stacked: tuple[torch.Tensor, ...],
        scale: float,
        output_slices: tuple[int, ...],
        **kwargs: Any,
    ) -> None:
        torch.ops.art.lora_linear(y, x, lora_a_stacked, lora_b_stacked, scale, self._token_lora_indices)

    def add_lora_logits(
        self: Any, y: torch.Tensor, x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, scale: float, **kwargs: Any
    ) -> None:
        groups = group_by_slot(self.sampler_indices.tolist())
        y, x = y.view(-1, y.shape[-1]), x.view(-1, x.shape[-1])
        # vLLM calls this for every adapter; one that does not change the head has zeros there.
        lora_linear(y, x, (a,), (b,), scale, [group for group in groups if b[group[0]].any()])

    PunicaWrapperCPU.update_metadata = update_metadata
    PunicaWrapperCPU.add_lora_logits = add_lora_logits
    PunicaWrapperCPU.add_lora_linear = add_lora_linear
