"""LoRA in vLLM on CPUs: one kernel or small matmuls over the batch, instead of a copy of the adapter per token.

Stock vLLM gathers a copy of the adapter's matrices for every token, and reads slot −1, "no adapter", as the last slot.
Here the slots of a batch are looked at once per forward pass. A short batch (decoding) is computed by a kernel in C
(`art_kernels`) in one pass. Without a compiler it is multiplied with the matrices of all slots at once, and what is not
a row's own is masked. Of a long batch (prefill) the rows of each adapter are taken apart, and a fused layer takes two
matmuls. Either way rows without an adapter get nothing. `ART_CPU_LORA=0` leaves vLLM as it is.

Experts get no adapter (`--lora-target-modules`). Stock vLLM, once adapters are enabled, computes experts with Triton,
which CPUs do not have; here its kernels for CPUs compute them.

Shapes: N tokens, I in, O out (of all slices), R rank, C slices of a fused layer (q, k, v), S slots.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from art_kernels import NUMBERS, Kernels, load
from art_parts import harmless, have

SHORT = 64
"""Rows up to which all slots are computed for every row: above, the wasted arithmetic outweighs the saved calls."""
WIDE = 512
"""S·C·R up to which that is done at all."""
MIDDLE = 192
"""Rows up to which the kernel is faster than matmuls."""

LORA, EXPERTS = "grouped LoRA on CPUs", "experts beside adapters on CPUs"
_CPU = "vllm.lora.punica_wrapper.punica_cpu:PunicaWrapperCPU"
_EXPERTS = "vllm.model_executor.layers.fused_moe.config:FusedMoEConfig"
PARTS = {
    LORA: (
        "vllm.lora.model_manager:LoRAModelManager.activate_adapter(lora_id)",
        "vllm.lora.model_manager:LoRAModelManager.deactivate_adapter(adapter_id)",
        f"{_CPU}.update_metadata(mapping, lora_index_to_id)",
        f"{_CPU}.add_lora_linear(y, x, lora_a_stacked, lora_b_stacked, scale, output_slices)",
        f"{_CPU}.add_lora_logits(y, x, lora_a_stacked, lora_b_stacked, scale)",
        f"{_CPU}.token_lora_indices",
        f"{_CPU}.sampler_indices",
        f"{_CPU}.self._token_lora_indices",
    ),
    EXPERTS: (f"{_EXPERTS}.__post_init__", f"{_EXPERTS}.is_lora_enabled"),
}
CPU_ONLY = (LORA, EXPERTS)

Group = tuple[int, torch.Tensor | slice]
"""A slot ≥ 0 and the rows of the batch that use it: a slice where they are contiguous, else their indices."""


@dataclass(slots=True)
class Batch:
    """Which row of a batch uses which adapter. mask_NS: 1 where row n uses slot s; only for short batches."""

    slots_N: torch.Tensor
    groups: list[Group]
    mask_NS: torch.Tensor | None

    @classmethod
    def of(cls, slots_N: Sequence[int], slots: int) -> Batch:
        groups = group_by_slot(slots_N)
        mask = None
        several = len(groups) > 1 or (groups and not isinstance(groups[0][1], slice))
        if several and len(slots_N) <= SHORT:
            mask = torch.zeros(len(slots_N), slots)
            for slot, rows in groups:
                mask[rows, slot] = 1.0
        return cls(torch.tensor(slots_N, dtype=torch.int64), groups, mask)


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


class PackedMatrices:
    """A layer's matrices as two matmuls need them, made anew after an adapter was loaded or unloaded."""

    def __init__(self) -> None:
        self._by_slot: dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor]] = {}
        self._stacks: dict[int, tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = {}

    def clear(self, *_: Any) -> None:
        self._by_slot.clear()
        self._stacks.clear()

    def stack(
        self, a: Sequence[torch.Tensor], b: Sequence[torch.Tensor], dtype: torch.dtype
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """What the kernel reads: (S, C·R, I), (S, R, O), and where each of the C slices of O ends."""
        if (matrices := self._stacks.get(a[0].data_ptr())) is None:
            down = torch.cat([part[:, 0] for part in a], dim=1).to(dtype).contiguous()
            up = torch.cat([part[:, 0].transpose(1, 2) for part in b], dim=2).to(dtype).contiguous()
            ends = torch.tensor([part.shape[-2] for part in b]).cumsum(0)
            matrices = self._stacks[a[0].data_ptr()] = (down, up, ends)
        return matrices

    def of(
        self, a: Sequence[torch.Tensor], b: Sequence[torch.Tensor], slot: int, dtype: torch.dtype
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(I, C·R) and (C·R, O) of a slot, O block by block; of all slots side by side for slot −1: (I, S·C·R), …

        a, b: per slice, (S, 1, R, I) and (S, 1, O of the slice, R).
        """
        key = (a[0].data_ptr(), slot)
        if (weights := self._by_slot.get(key)) is None:
            slots = range(a[0].shape[0]) if slot < 0 else [slot]
            down = torch.cat([part[index].flatten(0, -2) for index in slots for part in a])
            up = torch.cat([torch.block_diag(*(part[index].flatten(0, -2).T for part in b)) for index in slots])
            weights = self._by_slot[key] = (down.to(dtype).T.contiguous(), up.to(dtype).contiguous())
        return weights


_batches: dict[int, Batch] = {}
"""By address of a batch's index tensor."""
_matrices = PackedMatrices()


def lora_linear(
    y_NO: torch.Tensor,
    x_NI: torch.Tensor,
    a: Sequence[torch.Tensor],
    b: Sequence[torch.Tensor],
    scale: float,
    batch: Batch,
    matrices: PackedMatrices,
    kernels: Kernels | None,
) -> None:
    """Adds scale · (x Aᵀ) Bᵀ to y, in place, each row with its own adapter.

    a, b: one pair per slice of a fused layer; the outputs of the slices lie side by side in y.
    """
    if not batch.groups:
        return
    if kernels and len(x_NI) <= MIDDLE and x_NI.dtype is y_NO.dtype and x_NI.dtype in NUMBERS:
        down, up, ends = matrices.stack(a, b, x_NI.dtype)
        kernels.lora_linear(y_NO, x_NI, down, up, batch.slots_N, ends, scale)
        return
    slots, width = a[0].shape[0], sum(part.shape[-2] for part in a)
    if batch.mask_NS is not None and slots * width <= WIDE:
        down, up = matrices.of(a, b, -1, x_NI.dtype)
        low = (x_NI @ down).view(-1, slots, width) * batch.mask_NS.to(x_NI.dtype)[:, :, None]
        y_NO.addmm_(low.view(-1, slots * width), up, alpha=scale)
        return
    for slot, rows in batch.groups:
        down, up = matrices.of(a, b, slot, x_NI.dtype)
        if isinstance(rows, slice):
            y_NO[rows].addmm_(x_NI[rows] @ down, up, alpha=scale)
        else:
            y_NO[rows] = torch.addmm(y_NO[rows], x_NI[rows] @ down, up, alpha=scale)


def _op(
    y: torch.Tensor, x: torch.Tensor, a: list[torch.Tensor], b: list[torch.Tensor], scale: float, slots: torch.Tensor
) -> None:
    batch = _batches[slots.data_ptr()]
    count, y, x = len(batch.slots_N), y.view(-1, y.shape[-1]), x.view(-1, x.shape[-1])
    lora_linear(y[:count], x[:count], a, b, scale, batch, _matrices, load())


@harmless
def register() -> None:
    """Puts the grouped computation into vLLM's CPU wrapper. Called by vLLM in every engine process."""
    if os.environ.get("ART_CPU_LORA") == "0":
        return
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    if have(LORA, PARTS):
        _group()
    if have(EXPERTS, PARTS):
        _take_adapters_from_experts()


def _group() -> None:
    from vllm.lora.model_manager import LoRAModelManager
    from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU

    # An operator of its own, because torch.compile would bake one batch's groups into the graph.
    library = torch.library.Library("art", "FRAGMENT")
    library.define("lora_linear(Tensor(a!) y, Tensor x, Tensor[] a, Tensor[] b, float scale, Tensor slots) -> ()")
    library.impl("lora_linear", _op, "CPU")
    library.impl("lora_linear", lambda *args: None, "Meta")
    register.library = library  # type: ignore[attr-defined]  # an operator lives as long as its library

    update = PunicaWrapperCPU.update_metadata

    def update_metadata(self: Any, mapping: Any, lora_index_to_id: list[int | None], *args: Any, **kwargs: Any) -> None:
        update(self, mapping, lora_index_to_id, *args, **kwargs)
        slots = self.token_lora_indices
        _batches[self._token_lora_indices.data_ptr()] = Batch.of(slots.tolist(), len(lora_index_to_id))

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
        batch = Batch.of(self.sampler_indices.tolist(), len(a))
        # vLLM calls this for every adapter; one that does not change the head has zeros there.
        batch.groups = [group for group in batch.groups if b[group[0]].any()]
        y, x = y.view(-1, y.shape[-1]), x.view(-1, x.shape[-1])
        lora_linear(y, x, (a,), (b,), scale, batch, _matrices, None)

    def forgetting(change: Any) -> Any:
        @functools.wraps(change)
        def change_and_clear(self: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                changes = change(self, *args, **kwargs)
            except BaseException:
                _matrices.clear()
                raise
            if changes:
                _matrices.clear()
            return changes

        return change_and_clear

    PunicaWrapperCPU.update_metadata = update_metadata
    PunicaWrapperCPU.add_lora_logits = add_lora_logits
    PunicaWrapperCPU.add_lora_linear = add_lora_linear
    LoRAModelManager.activate_adapter = forgetting(LoRAModelManager.activate_adapter)
    LoRAModelManager.deactivate_adapter = forgetting(LoRAModelManager.deactivate_adapter)


def _take_adapters_from_experts() -> None:
    from vllm.model_executor.layers.fused_moe.config import FusedMoEConfig

    init_experts = FusedMoEConfig.__post_init__

    def without_adapters(self: Any) -> None:
        self.is_lora_enabled = False
        init_experts(self)

    FusedMoEConfig.__post_init__ = without_adapters
