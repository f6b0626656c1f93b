"""An adapter gets the names of the modules that vLLM has loaded, and vLLM refuses one that it would not apply whole.

Stock vLLM takes an adapter whose names are those of other modules, says so to a debug log, and answers from the base
model, or from a model to which half of the adapter is applied. That happens where transformers and vLLM load different
classes of a model: the trainer has the text of Qwen3.5 as `model.layers.0`, and vLLM has it beside the vision tower, as
`language_model.model.layers.0`. A name becomes that of the one module of vLLM's whose name ends in it. Where there are
none or several of these, it stays as it is, and the adapter is refused, as one for layers that vLLM does not adapt.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from typing import Any

from art_parts import harmless, have

FEATURE = "check of whole adapters"
"""The server uses no vLLM that lacks this, see `engine.py`."""
NAMES = "adapters by the names of loaded modules"
PARTS = {
    FEATURE: (
        "vllm.lora.lora_model:LoRAModel.from_lora_tensors(lora_model_id, tensors)",
        "vllm.lora.lora_model:LoRAModel.self.loras",
        "vllm.lora.model_manager:LoRAModelManager.activate_adapter(lora_id)",
        "vllm.lora.model_manager:LoRAModelManager.remove_adapter(adapter_id)",
        "vllm.lora.model_manager:LoRAModelManager._get_lora_layer_weights(lora_model, module_name)",
        "vllm.lora.model_manager:LoRAModelManager.self._registered_adapters",
        "vllm.lora.model_manager:LoRAModelManager.self.model",
        "vllm.lora.model_manager:LoRAModelManager.self.modules",
    ),
    NAMES: (
        "vllm.lora.model_manager:LoRAModelManager._add_adapter(lora)",
        "vllm.lora.model_manager:LoRAModelManager.self.packed_modules",
    ),
}
CPU_ONLY = ()
_MOST_NAMES = 3
"""Modules that a message names at most."""
_WEIGHT = re.compile(r"^(?:base_model\.model\.)?(.+)\.lora_(?:A|B|embedding_A|embedding_B)(?:\..*)?$")
"""The key of one of an adapter's tensors; its group is the module's name."""


def check_read(names: Iterable[str], adapter: Any) -> None:
    """Raises ValueError if vLLM has read fewer modules than an adapter's file has.

    Args:
        names: Keys of the file's tensors.
        adapter: vLLM's LoRAModel of them, before weights are packed.
    """
    modules = list(dict.fromkeys(match[1] for name in names if (match := _WEIGHT.match(name))))
    if len(adapter.loras) >= len(modules):
        return
    read = {_layer(name) for name in adapter.loras}
    missing = [name for name in modules if _layer(name) not in read] or modules
    raise ValueError(
        f"vLLM would leave out {len(modules) - len(adapter.loras)} of this adapter's {len(modules)} modules: "
        f"{_some(missing)}. Create the policy with targets that this vLLM adapts"
    )


def rename(manager: Any, adapter: Any) -> None:
    """Gives the modules of an adapter the names that vLLM has for them.

    Args:
        manager: vLLM's LoRAModelManager.
        adapter: Its LoRAModel, before weights are packed.
    """
    parts = (manager.packed_modules.get(name, [name]) for name in manager.modules)
    names = {*manager.modules, *(name for packed in parts for name in packed)}
    by_end: dict[str, list[str]] = {}
    for name in names:
        words = name.split(".")
        for first in range(1, len(words)):
            by_end.setdefault(".".join(words[first:]), []).append(name)
    renamed = {}
    for name in adapter.loras:
        alike = [] if name in names else by_end.get(name, [])
        renamed[name] = alike[0] if len(alike) == 1 else name
    if len(set(renamed.values())) == len(renamed):
        adapter.loras = {renamed[name]: weights for name, weights in adapter.loras.items()}
        for name, weights in adapter.loras.items():
            weights.module_name = name


def check_applied(manager: Any, adapter: Any) -> None:
    """Raises ValueError if a weight of an adapter is for no module of the model.

    Args:
        manager: vLLM's LoRAModelManager.
        adapter: Its LoRAModel, with weights packed as the model's modules are.
    """
    looked_up = (manager._get_lora_layer_weights(adapter, name) for name in manager.modules)
    whole = {id(weights) for weights in looked_up if weights is not None}
    elsewhere = _elsewhere(manager.model)
    left_out = [
        name
        for name, weights in adapter.loras.items()
        if id(weights) not in whole
        # The first half of stacked experts, which vLLM keeps beside the second.
        and id(adapter.loras.get(name.removesuffix(".base_layer"))) not in whole
        and not name.startswith(elsewhere)
    ]
    if not left_out:
        return
    kind, example = type(manager.model).__name__, next(iter(manager.modules), "none")
    if len(left_out) == len(adapter.loras):
        raise ValueError(
            "vLLM would apply no weight of this adapter, and answer from the base model: its layers are named like "
            f"{left_out[0]}, and those of {kind} that take adapters like {example}"
        )
    packed = getattr(manager, "packed_modules", {})
    parts = (part for name in set(adapter.loras) - set(left_out) for part in packed.get(name, [name]))
    works = {_last(part) for part in parts} - {_last(name) for name in left_out}
    raise ValueError(
        f"vLLM would apply this adapter in part: {len(left_out)} of its {len(adapter.loras)} modules are none that "
        f"take adapters in {kind}: {_some(left_out)}. Create the policy with targets that this vLLM adapts"
        + (f": {', '.join(sorted(works))}" if works else "")
    )


def _elsewhere(model: Any) -> tuple[str, ...]:
    """How the names of the layers begin that other ranks of a pipeline compute."""
    return tuple(f"{name}." for name, module in model.named_modules() if type(module).__name__ == "PPMissingLayer")


def _layer(name: str) -> str:
    """A module's name from its layer's number on: what comes before it may differ in vLLM."""
    match = re.search(r"(?:^|\.)(\d+\..+)$", name)
    return match[1] if match else name.rpartition(".")[2]


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + more


@harmless
def register() -> None:
    """Puts this into vLLM. Called by vLLM in every engine process."""
    if not have(FEATURE, PARTS):
        return
    from vllm.lora.lora_model import LoRAModel
    from vllm.lora.model_manager import LoRAModelManager

    read, activate = LoRAModel.from_lora_tensors.__func__, LoRAModelManager.activate_adapter

    @functools.wraps(read)
    def from_lora_tensors(cls: Any, lora_model_id: int, tensors: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        adapter = read(cls, lora_model_id, tensors, *args, **kwargs)
        check_read(tensors, adapter)
        adapter.art_from_file = True
        return adapter

    @functools.wraps(activate)
    def activate_adapter(self: Any, lora_id: int) -> bool:
        adapter = self._registered_adapters[lora_id]
        if getattr(adapter, "art_from_file", False):  # what vLLM makes up to warm itself up is no adapter of a policy
            try:
                check_applied(self, adapter)
            except ValueError:
                self.remove_adapter(lora_id)
                raise
        return bool(activate(self, lora_id))

    LoRAModel.from_lora_tensors = classmethod(from_lora_tensors)
    LoRAModelManager.activate_adapter = activate_adapter
    if have(NAMES, PARTS):
        _rename_before_packing(LoRAModelManager)


def _rename_before_packing(manager: Any) -> None:
    add = manager._add_adapter

    @functools.wraps(add)
    def add_adapter(self: Any, lora: Any) -> None:
        if getattr(lora, "art_from_file", False):
            rename(self, lora)
        add(self, lora)

    manager._add_adapter = add_adapter
