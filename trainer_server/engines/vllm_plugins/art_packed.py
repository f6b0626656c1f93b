"""Adapters for a part of a packed layer, and for the whole of one, are applied.

vLLM packs layers that read the same input, such as `in_proj_qkv` and `in_proj_z` of Qwen3.5, of which the first has
three slices. Of an adapter that lacks one part, stock vLLM takes all further slices for that part's, and raises an
error at the next. Here the missing part gets a B of zeros, with the rows that the others leave.

A checkpoint may have as one layer what vLLM packs by the names of its parts: `gate_up_proj` of GLM-4, for which stock
vLLM takes `gate_proj` and `up_proj` alone. Here each part gets A, and its rows of B.

Layers of Gemma 4 may have no `v_proj`: their values are their keys, before norm and rotation. vLLM loads `k_proj` twice
into its packed layer, and stock vLLM applies the adapter of `k_proj` to the keys alone. Here it is the values', too.

vLLM loads the rows of `q_proj` and `k_proj` of Llama 4 in another order, in which it rotates halves of a head in place
of pairs. Stock vLLM leaves the rows of B in the old one. Here they get that of the weights.

Shapes: R rank, I in, O out of a part.
"""

from __future__ import annotations

import copy
import functools
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from art_parts import harmless, have

FEATURE = "adapters for a part of a packed layer"
WHOLE = "adapters for a packed layer as a whole"
KEYS = "adapters for keys that are values, too"
ORDER = "adapters in the order of loaded rows"
_LAYER = "vllm.lora.layers.column_parallel_linear:MergedColumnParallelLinearWithLoRA"
_MANAGER = "vllm.lora.model_manager:LoRAModelManager"
PARTS = {
    FEATURE: (f"{_LAYER}.expand_packed_lora(lora_a, lora_b)", f"{_LAYER}.self.output_sizes"),
    WHOLE: (
        "vllm.lora.lora_model:LoRAModel.from_local_checkpoint(lora_dir, expected_lora_modules, peft_helper)",
        f"{_MANAGER}._create_merged_loras_inplace(lora_model)",
        f"{_MANAGER}.self.packed_modules",
        f"{_MANAGER}.self.modules",
        f"{_LAYER}.self.output_sizes",
    ),
    KEYS: (
        f"{_MANAGER}._create_merged_loras_inplace(lora_model)",
        f"{_MANAGER}.self.packed_modules",
        f"{_MANAGER}.self.model",
    ),
    ORDER: (f"{_MANAGER}._create_merged_loras_inplace(lora_model)", f"{_MANAGER}.self.model"),
}
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


def split(manager: Any, adapter: Any) -> None:
    """Divides the weights of packed layers among their parts.

    Args:
        manager: vLLM's LoRAModelManager.
        adapter: Its LoRAModel, before weights are packed.
    """
    for name, parts in manager.packed_modules.items():
        weights, sizes = adapter.loras.get(name), getattr(manager.modules[name], "output_sizes", ())
        if weights is None or weights.is_packed or len(sizes) != len(parts) or sum(sizes) != len(weights.lora_b):
            continue
        del adapter.loras[name]
        for part, rows in zip(parts, weights.lora_b.split(list(sizes)), strict=True):
            adapter.loras[part] = copy.copy(weights)
            adapter.loras[part].module_name, adapter.loras[part].lora_b = part, rows


def copy_keys(manager: Any, adapter: Any) -> None:
    """Gives the values that are keys the adapter of these.

    Args:
        manager: vLLM's LoRAModelManager.
        adapter: Its LoRAModel, before weights are packed.
    """
    config: Any = getattr(manager.model, "config", None)
    text: Any = config.get_text_config() if hasattr(config, "get_text_config") else config
    if not getattr(text, "attention_k_eq_v", False):
        return
    for name, parts in manager.packed_modules.items():
        layer = re.search(r"\.layers\.(\d+)\.self_attn\.qkv_proj$", name)
        if layer is None or text.layer_types[int(layer[1])] != "full_attention":
            continue
        _, key, value = parts
        if key in adapter.loras and value not in adapter.loras:
            weights = adapter.loras[value] = copy.copy(adapter.loras[key])
            weights.module_name, weights.lora_b = value, weights.lora_b.clone()  # vLLM scales each B in place


def reorder(manager: Any, adapter: Any) -> None:
    """Puts the rows of B of queries and keys into the order of their weights.

    Args:
        manager: vLLM's LoRAModelManager.
        adapter: Its LoRAModel, before weights are packed.
    """
    model = getattr(manager.model, "language_model", manager.model)
    permute = getattr(model, "permute_qk_weight_for_rotary", None)  # by which vLLM loads them
    if permute is None:
        return
    for name, weights in adapter.loras.items():
        if name.endswith((".q_proj", ".k_proj")):
            _, weights.lora_b = permute(f"{name}.weight", weights.lora_b)


@harmless
def register() -> None:
    """Puts this into vLLM. Called by vLLM in every engine process."""
    if have(FEATURE, PARTS):
        _expand_parts()
    if have(WHOLE, PARTS):
        _accept_packed_names()
        _before_packing(split)
    if have(KEYS, PARTS):
        _before_packing(copy_keys)
    if have(ORDER, PARTS):
        _before_packing(reorder)


def _expand_parts() -> None:
    from vllm.lora.layers.column_parallel_linear import MergedColumnParallelLinearWithLoRA as Layer

    expand = Layer.expand_packed_lora

    @functools.wraps(expand)
    def expand_packed_lora(self: Any, lora_a: Halves, lora_b: Halves) -> Any:
        return expand(self, *with_zeros(lora_a, lora_b, self.output_sizes))

    Layer.expand_packed_lora = expand_packed_lora


def _accept_packed_names() -> None:
    from vllm.lora.lora_model import LoRAModel

    read = LoRAModel.from_local_checkpoint.__func__

    @functools.wraps(read)
    def from_local_checkpoint(
        cls: Any, lora_dir: str, expected_lora_modules: set[str], peft_helper: Any, **options: Any
    ) -> Any:
        own = peft_helper.target_modules  # `art_applied` refuses those that no module takes, and offers what works
        names = set() if isinstance(own, str) else set(own)
        return read(cls, lora_dir, expected_lora_modules | names, peft_helper, **options)

    reader: Any = from_local_checkpoint
    LoRAModel.from_local_checkpoint = classmethod(reader)


def _before_packing(change: Callable[[Any, Any], None]) -> None:
    from vllm.lora.model_manager import LoRAModelManager

    merge = LoRAModelManager._create_merged_loras_inplace

    @functools.wraps(merge)
    def merge_in_place(self: Any, lora_model: Any) -> None:
        change(self, lora_model)
        merge(self, lora_model)

    LoRAModelManager._create_merged_loras_inplace = merge_in_place
