"""An adapter that vLLM would not apply whole is refused by the names of modules; see tests/full for the real vLLM."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.support.engines.plugins import engine_plugin, write_vllm

plugin = engine_plugin("art_applied")
LAYERS = "language_model.model.layers"


class PPMissingLayer(torch.nn.Identity):
    """What vLLM has in the place of a layer that another rank of a pipeline computes."""


class Manager:
    """Modules of a model, which vLLM finds weights for by their names."""

    def __init__(self, *modules: str, elsewhere: Iterable[str] = ()) -> None:
        self.model = torch.nn.Module()
        self.modules = dict.fromkeys(modules)
        for name in elsewhere:
            parent = self.model
            *path, last = name.split(".")
            for step in path:
                if not hasattr(parent, step):
                    parent.add_module(step, torch.nn.Module())
                parent = getattr(parent, step)
            parent.add_module(last, PPMissingLayer())

    def _get_lora_layer_weights(self, adapter: Any, name: str) -> Any:
        return adapter.loras.get(name)


def adapter(*names: str) -> Any:
    return SimpleNamespace(loras={name: object() for name in names})


def tensors(*modules: str) -> dict[str, int]:
    return {f"base_model.model.{name}.lora_{half}.weight": 0 for name in modules for half in "AB"}


@pytest.mark.parametrize("names", [[], [f"{LAYERS}.1.qkv_proj"], [f"{LAYERS}.0.qkv_proj", f"{LAYERS}.1.qkv_proj"]])
def test_an_adapter_whose_names_are_all_known_passes(names: list[str]) -> None:
    plugin.check_applied(Manager(f"{LAYERS}.0.qkv_proj", f"{LAYERS}.1.qkv_proj", "lm_head"), adapter(*names))


def test_an_adapter_for_other_modules_is_refused_with_both_names() -> None:
    with pytest.raises(ValueError, match=r"named like model\.layers\.0.*take adapters like language_model\.model"):
        plugin.check_applied(Manager(f"{LAYERS}.0.q_proj"), adapter("model.layers.0.q_proj"))


def test_an_adapter_that_is_applied_in_part_is_refused_by_the_names_of_its_modules() -> None:
    left_out = [f"{LAYERS}.{number}.mlp.down_proj" for number in range(5)]
    with pytest.raises(ValueError, match=r"in part: 5 of its 6 modules .*0\.mlp\.down_proj, .* and 2 more\. Create"):
        plugin.check_applied(Manager(f"{LAYERS}.0.q_proj"), adapter(f"{LAYERS}.0.q_proj", *left_out))


def test_targets_that_work_are_offered() -> None:
    manager = Manager(f"{LAYERS}.0.qkv_proj", f"{LAYERS}.0.o_proj")
    manager.packed_modules = {f"{LAYERS}.0.qkv_proj": ["x.q_proj", "x.k_proj"]}  # type: ignore[attr-defined]
    names = [f"{LAYERS}.0.{name}_proj" for name in ("qkv", "o", "up")]
    with pytest.raises(ValueError, match=r"0\.up_proj\. .* this vLLM adapts: k_proj, o_proj, q_proj$"):
        plugin.check_applied(manager, adapter(*names))


def test_halves_of_stacked_experts_belong_to_one_module() -> None:
    experts = f"{LAYERS}.0.mlp.experts"
    plugin.check_applied(Manager(experts), adapter(experts, f"{experts}.base_layer"))
    with pytest.raises(ValueError, match="apply no weight"):
        plugin.check_applied(Manager(f"{LAYERS}.0.q_proj"), adapter(f"{experts}.base_layer"))


def test_layers_of_other_ranks_of_a_pipeline_are_not_missed_here() -> None:
    manager = Manager("model.layers.0.q_proj", elsewhere=["model.layers.1", "model.layers.10"])
    plugin.check_applied(manager, adapter("model.layers.0.q_proj", "model.layers.1.q_proj", "model.layers.10.q_proj"))
    with pytest.raises(ValueError, match=r"in part: 1 of its 2 modules .*model\.layers\.2\.q_proj"):
        plugin.check_applied(manager, adapter("model.layers.0.q_proj", "model.layers.2.q_proj"))
    nothing_here = Manager(elsewhere=["model.layers.0"])
    plugin.check_applied(nothing_here, adapter("model.layers.0.q_proj"))


def test_modules_that_vllm_does_not_read_are_named() -> None:
    """It skips names by prefixes of the model's, and puts two modules under one name where its mapping does."""
    file = tensors("model.layers.0.q_proj", "mtp.layers.0.q_proj", "mtp.layers.0.o_proj")
    plugin.check_read(file, adapter("lm.layers.0.q_proj", "mtp.layers.0.q_proj", "mtp.layers.0.o_proj"))
    with pytest.raises(ValueError, match=r"leave out 2 of this adapter's 3 modules: .*mtp\.layers\.0\.o_proj"):
        plugin.check_read(file, adapter("lm.layers.0.q_proj"))
    embeddings = {"base_model.model.model.embed_tokens.lora_embedding_A": 0, "model.lm_head.base_layer.weight": 0}
    plugin.check_read(embeddings, adapter("model.embed_tokens"))


MODEL = """
class LoRAModel:
    def __init__(self, loras):
        self.loras = loras

    @classmethod
    def from_lora_tensors(cls, lora_model_id, tensors, skip=""):
        names = dict.fromkeys(name[len("base_model.model."):].partition(".lora_")[0] for name in tensors)
        return cls({name: object() for name in names if not skip or skip not in name})
"""
MANAGER = """
class LoRAModelManager:
    def __init__(self, model, modules):
        self.model = model
        self.modules = modules
        self._registered_adapters = {}
        self.active = []

    def activate_adapter(self, lora_id):
        self.active.append(lora_id)
        return True

    def deactivate_adapter(self, adapter_id):
        return True

    def remove_adapter(self, adapter_id):
        self._registered_adapters.pop(adapter_id)

    def _get_lora_layer_weights(self, lora_model, module_name):
        return lora_model.loras.get(module_name)
"""


@pytest.fixture
def vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """An imitated vLLM with the plugin: its class of adapters, and a manager of a model of one layer."""
    write_vllm(tmp_path, (part for parts in plugin.PARTS.values() for part in parts))
    (tmp_path / "vllm/lora/lora_model/__init__.py").write_text(MODEL)
    (tmp_path / "vllm/lora/model_manager/__init__.py").write_text(MANAGER)
    monkeypatch.syspath_prepend(str(tmp_path))
    plugin.register()
    from vllm.lora.lora_model import LoRAModel
    from vllm.lora.model_manager import LoRAModelManager

    yield LoRAModel, LoRAModelManager(torch.nn.Module(), {"model.layers.0.q_proj": None})
    for name in [name for name in sys.modules if name.partition(".")[0] == "vllm"]:
        del sys.modules[name]


def test_only_whole_adapters_of_files_become_active(vllm: Any) -> None:
    models, manager = vllm
    whole = models.from_lora_tensors(1, tensors("model.layers.0.q_proj"))
    half = models.from_lora_tensors(2, tensors("model.layers.0.q_proj", "model.layers.0.o_proj"))
    dummy = models({"model.layers.0.odd": object()})  # what vLLM makes up to warm itself up
    manager._registered_adapters = {1: whole, 2: half, 3: dummy}
    assert manager.activate_adapter(1)
    with pytest.raises(ValueError, match=r"model\.layers\.0\.o_proj"):
        manager.activate_adapter(2)
    assert manager.activate_adapter(3)
    assert manager.active == [1, 3]
    assert 2 not in manager._registered_adapters
    with pytest.raises(ValueError, match=r"leave out 1 of this adapter's 2 modules: model\.layers\.0\.o_proj"):
        models.from_lora_tensors(4, tensors("model.layers.0.q_proj", "model.layers.0.o_proj"), skip="o_proj")


class Weights:
    """vLLM's of one module."""

    def __init__(self, name: str) -> None:
        self.module_name = name


def renamed(manager: Any, *names: str) -> list[str]:
    adapter = SimpleNamespace(loras={name: Weights(name) for name in names})
    plugin.rename(manager, adapter)
    assert [weights.module_name for weights in adapter.loras.values()] == list(adapter.loras)
    return list(adapter.loras)


def test_modules_get_the_names_of_those_that_vllm_has_loaded() -> None:
    """The trainer has the text model alone, and vLLM has it beside a vision tower, with layers packed."""
    manager = Manager(f"{LAYERS}.0.self_attn.qkv_proj", f"{LAYERS}.1.linear_attn.out_proj", "visual.blocks.0.attn.proj")
    packed = [f"{LAYERS}.0.self_attn.{name}_proj" for name in "qkv"]
    manager.packed_modules = {f"{LAYERS}.0.self_attn.qkv_proj": packed}  # type: ignore[attr-defined]
    found = renamed(manager, "model.layers.0.self_attn.k_proj", "model.layers.1.linear_attn.out_proj")
    assert found == [f"{LAYERS}.0.self_attn.k_proj", f"{LAYERS}.1.linear_attn.out_proj"]
    assert renamed(manager, *packed) == packed, "the names of vLLM itself stay"
    assert renamed(manager, "model.layers.0.self_attn.qkv_proj") == [f"{LAYERS}.0.self_attn.qkv_proj"]
    other = ["model.layers.0.self_attn.o_proj", "model.layers.1.out_proj", "model.blocks.1.linear_attn.out_proj"]
    assert renamed(manager, *other) == other, "there is no such module"
    text = Manager("model.layers.0.q_proj")
    text.packed_modules = {}  # type: ignore[attr-defined]
    for name in ("language_model.layers.0.q_proj", "mtp.layers.0.q_proj", "other_model.layers.0.q_proj"):
        assert renamed(text, name) == [name], "of another part of another model"


def test_a_name_that_several_modules_have_stays() -> None:
    manager = Manager(*(f"{part}.model.layers.0.q_proj" for part in ("encoder", "decoder")), f"{LAYERS}.1.q_proj")
    manager.packed_modules = {}  # type: ignore[attr-defined]
    assert renamed(manager, "model.layers.0.q_proj") == ["model.layers.0.q_proj"]
    twice = ["model.layers.1.q_proj", "layers.1.q_proj"]
    assert renamed(manager, *twice) == twice, "no two adapters become one"
