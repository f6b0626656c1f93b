"""vLLM refuses an adapter of which it would apply nothing.

Stock vLLM takes an adapter whose names are those of other modules, says so to a debug log, and answers from the base
model. That happens where transformers and vLLM load different classes of a model, with other names for the same layers.

This folder goes on vLLM's PYTHONPATH, with the entry point in the dist-info beside this file.
"""

from __future__ import annotations

from typing import Any


def check_applied(manager: Any, adapter: Any) -> None:
    """Raises ValueError if no weight of an adapter is for a module of the model.

    Args:
        manager: vLLM's LoRAModelManager.
        adapter: Its LoRAModel.
    """
    if not adapter.loras or any(manager._get_lora_layer_weights(adapter, name) for name in manager.modules):
        return
    own, known = next(iter(adapter.loras)), next(iter(manager.modules), "none")
    raise ValueError(
        f"vLLM would apply no weight of this adapter, and answer from the base model: its layers are named like {own}, "
        f"and those of {type(manager.model).__name__} that take adapters like {known}"
    )


def register() -> None:
    """Puts this into vLLM. Called by vLLM in every engine process."""
    from vllm.distributed import get_pp_group
    from vllm.lora.model_manager import LoRAModelManager

    activate = LoRAModelManager.activate_adapter

    def checked(self: Any, lora_id: int) -> bool:
        if get_pp_group().world_size == 1:  # a rank of a pipeline may have none of the adapted layers
            try:
                check_applied(self, self._registered_adapters[lora_id])
            except ValueError:
                self.remove_adapter(lora_id)
                raise
        return bool(activate(self, lora_id))

    LoRAModelManager.activate_adapter = checked
