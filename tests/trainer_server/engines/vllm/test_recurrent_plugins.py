"""What vLLM lacks for models with recurrent layers, and what plugins put there; see tests/full for the real vLLM."""

from __future__ import annotations

import importlib.util
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.support.engines.plugins import engine_plugin

packed, gated_delta, vision = (engine_plugin(f"art_{name}") for name in ("packed", "gated_delta", "vision"))


def test_a_part_that_an_adapter_lacks_gets_zeros_of_its_rows() -> None:
    sizes = [4, 4, 6, 5]
    a, b = torch.ones(2, 3), torch.ones(5, 2)
    a_of_all, b_of_all = packed.with_zeros([None, a], [None, b], sizes)
    assert [tuple(part.shape) for part in (*a_of_all, *b_of_all)] == [(2, 3), (2, 3), (14, 2), (5, 2)]
    assert not b_of_all[0].any()
    assert b_of_all[1] is b
    whole = ([a, a], [torch.ones(14, 2), b])
    assert packed.with_zeros(*whole, sizes) == whole


def weights_of(name: str, rows: int) -> Any:
    lora_b = torch.arange(2.0 * rows).view(rows, 2)
    return SimpleNamespace(module_name=name, lora_a=torch.ones(2, 3), lora_b=lora_b, is_packed=False)


def test_a_packed_layer_that_an_adapter_has_as_one_is_divided_among_its_parts() -> None:
    parts = {f"{at}.gate_up_proj": [f"{at}.gate_proj", f"{at}.up_proj"] for at in range(3)}
    parts["0.qkv_proj"] = [f"0.{name}_proj" for name in "qkv"]
    modules = {name: SimpleNamespace(output_sizes=[4, 5] if len(of) == 2 else [4, 2, 2]) for name, of in parts.items()}
    manager = SimpleNamespace(packed_modules=parts, modules=modules)
    whole = weights_of("0.gate_up_proj", 9)
    other = {name: weights_of(name, rows) for name, rows in [("1.gate_up_proj", 8), ("0.k_proj", 2), ("0.o_proj", 4)]}
    adapter = SimpleNamespace(loras={whole.module_name: whole, **other})
    packed.split(manager, adapter)
    gate, up = (adapter.loras.pop(name) for name in ("0.gate_proj", "0.up_proj"))
    assert (gate.module_name, up.module_name) == ("0.gate_proj", "0.up_proj")
    assert gate.lora_a is up.lora_a is whole.lora_a
    assert torch.equal(gate.lora_b, whole.lora_b[:4])
    assert torch.equal(up.lora_b, whole.lora_b[4:])
    assert adapter.loras == other, "of other sizes, or parts already: as they are"


@pytest.mark.parametrize("wrapped", [False, True])
def test_values_that_are_keys_get_the_adapter_of_the_keys(wrapped: bool) -> None:
    kinds = ["sliding_attention", "full_attention", "full_attention"]
    names = [f"model.layers.{at}.self_attn" for at in range(3)]
    parts = {f"{name}.qkv_proj": [f"{name}.{part}_proj" for part in "qkv"] for name in names}
    text = SimpleNamespace(attention_k_eq_v=True, layer_types=kinds)
    config = SimpleNamespace(get_text_config=lambda: text) if wrapped else text
    manager = SimpleNamespace(packed_modules=parts, model=SimpleNamespace(config=config))
    loras = {f"{name}.k_proj": weights_of(f"{name}.k_proj", 2) for name in names[:2]}
    adapter = SimpleNamespace(loras={**loras, f"{names[2]}.q_proj": weights_of("q", 2)})
    packed.copy_keys(manager, adapter)
    assert [name for name in adapter.loras if "v_proj" in name] == [f"{names[1]}.v_proj"]
    value, key = (adapter.loras[f"{names[1]}.{part}_proj"] for part in "vk")
    assert value.module_name == f"{names[1]}.v_proj"
    assert torch.equal(value.lora_b, key.lora_b)
    value.lora_b *= 2  # as vLLM folds the scale into it
    assert not torch.equal(value.lora_b, key.lora_b)
    text.attention_k_eq_v = False
    del adapter.loras[f"{names[1]}.v_proj"]
    packed.copy_keys(manager, adapter)
    assert f"{names[1]}.v_proj" not in adapter.loras


class Permuting:
    """A model whose loader puts rows into the order of halves."""

    def permute_qk_weight_for_rotary(self, name: str, weight: torch.Tensor) -> tuple[str, torch.Tensor]:
        assert name.endswith("_proj.weight")
        return name, torch.cat([weight[::2], weight[1::2]])


@pytest.mark.parametrize("model", [Permuting(), SimpleNamespace(language_model=Permuting())])
def test_rows_of_queries_and_keys_get_the_order_of_their_weights(model: Any) -> None:
    loras = {f"0.{name}_proj": weights_of(name, 4) for name in "qkvo"}
    packed.reorder(SimpleNamespace(model=model), SimpleNamespace(loras=loras))
    first = [weights.lora_b[:, 0].tolist() for weights in loras.values()]
    assert first == [[0, 4, 2, 6], [0, 4, 2, 6], [0, 2, 4, 6], [0, 2, 4, 6]]
    packed.reorder(SimpleNamespace(model=object()), SimpleNamespace(loras=loras))
    assert [weights.lora_b[:, 0].tolist() for weights in loras.values()] == first


def test_one_token_has_the_distance_that_the_kernel_takes_and_the_same_numbers() -> None:
    row = torch.arange(12.0).view(1, 12)[:, :5]  # of a wider row, and yet contiguous
    assert row.is_contiguous()
    assert gated_delta.by_channels(row.T).stride() == (1, 5)
    assert torch.equal(gated_delta.by_channels(row.T), row.T)
    two = torch.arange(10.0).view(2, 5).T
    assert gated_delta.by_channels(two) is two


@pytest.mark.skipif(importlib.util.find_spec("torchvision") is not None, reason="torchvision is installed")
def test_torchvision_can_be_imported_and_not_used_while_a_model_is_loaded() -> None:
    with vision.absent_torchvision():
        from torchvision.transforms.v2 import functional

        assert functional.InterpolationMode | int | None
        with pytest.raises(ModuleNotFoundError, match=r"functional\.resize needs torchvision"):
            functional.resize(1)
    assert not [name for name in sys.modules if name.partition(".")[0] == "torchvision"]
    assert importlib.util.find_spec("torchvision") is None
