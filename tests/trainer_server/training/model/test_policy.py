"""The policy's model: what it writes, and which log-probabilities it gives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from transformers import (
    AutoModelForCausalLM,
    FalconH1Config,
    Gemma3Config,
    GPTNeoXConfig,
    LlamaConfig,
    Phi3Config,
    PhimoeConfig,
    Qwen3Config,
    Qwen3MoeConfig,
)

from tests.support.training.models import ARCHITECTURES, PLAIN, SIZES, pair, tiny_model
from trainer_server.engines.model_files import ModelFiles
from trainer_server.training.model.policy import PolicyModel
from trainer_server.training.model.precision import with_gradients
from trainer_server.training.model.tree import pack
from trainer_server.wire import PolicySpec, TrainingError
from trainer_server.wire.policies import ATTENTION_TARGETS, MLP_TARGETS


def test_an_adapter_is_written_in_one_order(tmp_path: Path) -> None:
    """PEFT keeps target names in a set, whose order is another in each process."""
    model = pair(LlamaConfig(**SIZES), tmp_path / "model").ours
    (tmp_path / "adapter").mkdir()
    model.save(tmp_path / "adapter")
    written = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert written["target_modules"] == sorted(["q_proj", "k_proj", "v_proj", "o_proj", *MLP_TARGETS])
    before = [weight.detach().clone() for _, weight in model.parameters()]
    model.initialise(PolicySpec(name="tiny"))
    model.load(PolicySpec(name="tiny"), tmp_path / "adapter")
    assert all(torch.equal(a, b) for a, (_, b) in zip(before, model.parameters(), strict=True))


def test_in_a_mixture_of_experts_only_attention_is_adapted_and_that_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """PEFT would make one adapter for all experts of it, which vLLM does not take."""
    model = tiny_model(
        tmp_path / "model", Qwen3MoeConfig(**SIZES, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16)
    )
    assert {name.split(".")[-3] for name, _ in model.parameters()} == {"q_proj", "k_proj", "v_proj", "o_proj"}
    assert "only q_proj, k_proj, v_proj, o_proj get an adapter" in caplog.text
    with pytest.raises(TrainingError, match="create the policy with targets among q_proj, k_proj, v_proj, o_proj"):
        model.initialise(PolicySpec(name="tiny", targets=("up_proj", "down_proj")))


def test_layers_that_no_policy_adapts_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    sizes = {"mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_chunk_size": 8}
    tiny_model(tmp_path, FalconH1Config(**SIZES, **sizes))
    attention, mlp = "q_proj, k_proj, v_proj, o_proj", "gate_proj, up_proj, down_proj"
    assert f"FalconH1ForCausalLM: {attention}, {mlp} get an adapter, in_proj, out_proj none" in caplog.text


def test_targets_are_the_linear_layers_of_the_model_whatever_their_names(tmp_path: Path) -> None:
    """Fused ones, and those that no list has."""
    for config, names in (
        (Phi3Config(**SIZES, pad_token_id=0), {"o_proj", "qkv_proj", "down_proj", "gate_up_proj"}),
        (GPTNeoXConfig(**PLAIN), {"query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"}),
    ):
        model = tiny_model(tmp_path / config.model_type, config)
        assert {name.split(".")[-3] for name, _ in model.parameters()} == names
        assert set(ModelFiles(tmp_path / config.model_type).linear_layers) == names
        (tmp_path / "adapter" / config.model_type).mkdir(parents=True)
        model.save(tmp_path / "adapter" / config.model_type)
    model.initialise(PolicySpec(name="tiny", targets=("dense",)))
    assert {name.split(".")[-3] for name, _ in model.parameters()} == {"dense"}
    with pytest.raises(TrainingError, match=r"targets=dens: .*among dense, dense_4h_to_h, .*query_key_value"):
        model.initialise(PolicySpec(name="tiny", targets=("dense", "dens")))


def test_experts_get_an_adapter_where_a_policy_names_them(tmp_path: Path) -> None:
    """Under the names that vLLM reads; policies with and without it, and of several ranks, take turns."""
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
    model = tiny_model(tmp_path / "model", Qwen3MoeConfig(**SIZES, **experts))
    assert not any("experts" in name for name, _ in model.parameters())
    spec = PolicySpec(name="tiny", targets=("q_proj", "experts"))
    model.initialise(spec)
    weights = {name.partition("layers.0.mlp.")[2]: tuple(weight.shape) for name, weight in model.parameters()}
    assert {name: shape for name, shape in weights.items() if name} == {
        "experts.base_layer.lora_A.weight": (4 * 8, 32),
        "experts.base_layer.lora_B.weight": (32, 4 * 8),
        "experts.lora_A.weight": (4 * 8, 16),
        "experts.lora_B.weight": (32, 4 * 8),
    }
    with torch.no_grad():
        for _, weight in model.parameters():
            weight.normal_()
    before = {name: weight.detach().clone() for name, weight in model.parameters()}
    (tmp_path / "adapter").mkdir()
    model.save(tmp_path / "adapter")
    (row,) = pack([np.array([1, 2])], [np.array([3])], budget=8).rows
    whole = model.logprobs(row, torch.ones(1))[0].detach()
    for other in (PolicySpec(name="tiny"), PolicySpec(name="tiny", rank=1, targets=("experts",))):
        model.initialise(other)
        assert not torch.equal(model.logprobs(row, torch.ones(1))[0], whole)
    model.load(PolicySpec(name="tiny"), tmp_path / "adapter")
    assert [name for name, weight in model.parameters() if torch.equal(weight, before[name])] == list(before)
    assert torch.equal(model.logprobs(row, torch.ones(1))[0], whole)
    dense = tiny_model(tmp_path / "dense", Qwen3Config(**SIZES))
    with pytest.raises(TrainingError, match=r"targets=experts: Qwen3ForCausalLM has no layers .*among q_proj"):
        dense.initialise(PolicySpec(name="tiny", targets=("experts",)))


def test_a_version_is_loaded_with_the_targets_that_it_was_made_with(tmp_path: Path) -> None:
    """Those of an older release, which adapted fewer layers by default."""
    model = tiny_model(tmp_path / "model", Phi3Config(**SIZES, pad_token_id=0))
    model.initialise(PolicySpec(name="tiny", targets=("o_proj", "down_proj")))
    before = {name: weight.detach().clone() for name, weight in model.parameters()}
    (tmp_path / "adapter").mkdir()
    model.save(tmp_path / "adapter")
    model.initialise(PolicySpec(name="tiny"))
    assert len(list(model.parameters())) == 2 * len(before)
    model.load(PolicySpec(name="tiny"), tmp_path / "adapter")
    assert {name: bool(weight.equal(before[name])) for name, weight in model.parameters()} == dict.fromkeys(
        before, True
    )


def test_attention_names_its_layers_and_odd_names_are_refused() -> None:
    assert PolicySpec(name="a", targets=("attention",)).targets == ATTENTION_TARGETS
    assert PolicySpec(name="a", targets=("dense", "v_proj", "q_proj")).targets == ("q_proj", "v_proj", "dense")
    for targets in ((), ("",), ("q_proj.weight",), (".*",)):
        with pytest.raises(ValidationError, match="targets must be names of linear layers"):
            PolicySpec(name="a", targets=targets)


def test_nothing_is_drawn_at_random_in_training(tmp_path: Path) -> None:
    model = tiny_model(tmp_path / "llama", LlamaConfig(**SIZES, attention_dropout=0.5))
    assert model.share
    (row,) = pack([np.array([1, 2, 3])], [np.array([4, 5])], budget=99).rows
    first, second = (model.logprobs(row, torch.ones(2))[0] for _ in range(2))
    assert torch.equal(first, second)
    routed = PhimoeConfig(**SIZES, num_local_experts=4, num_experts_per_tok=2)
    with pytest.raises(TrainingError, match="PhimoeForCausalLM computes at random in training"):
        tiny_model(tmp_path / "phimoe", routed)


def test_weights_in_fewer_bits_are_loaded_with_gradients() -> None:
    published = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    config = with_gradients(LlamaConfig(**SIZES, quantization_config=published))
    assert config.quantization_config == {**published, "dequantize": True}
    other = with_gradients(LlamaConfig(**SIZES, quantization_config={"quant_method": "gptq", "bits": 4}))
    assert "dequantize" not in other.quantization_config


def test_entropy_has_a_gradient_when_asked_for(tmp_path: Path) -> None:
    """Both outputs of the head and their derivatives, against torch's own on all logits."""
    both = pair(LlamaConfig(**SIZES), tmp_path)
    temperature = 0.7
    (row,) = pack([np.array([1, 2, 3])], [np.array([4, 5, 6])], budget=99).rows
    weights = [weight for _, weight in both.ours.parameters()]
    logp_R, entropy_R = both.ours.logprobs(row, torch.full((3,), temperature), entropy_gradient=True)
    found = torch.autograd.grad(logp_R.sum() + 2 * entropy_R.sum(), weights)
    logits = both.stock(input_ids=torch.tensor([[1, 2, 3, 4, 5]]), use_cache=False).logits[0, 2:]
    all_logp = (logits / temperature).log_softmax(-1)
    entropy = -(all_logp.exp() * all_logp).sum(-1)
    theirs = [w for name, w in sorted(both.stock.named_parameters()) if "lora_" in name]
    expected = torch.autograd.grad(all_logp[range(3), [4, 5, 6]].sum() + 2 * entropy.sum(), theirs)
    assert torch.allclose(entropy_R, entropy, atol=1e-5)
    for one, other in zip(found, expected, strict=True):
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-5)
    assert not both.ours.logprobs(row, torch.ones(3))[1].requires_grad


def test_policies_of_other_shapes_take_turns_and_keep_nothing_in_memory(tmp_path: Path) -> None:
    model = tiny_model(tmp_path / "model", ARCHITECTURES["llama"])
    (row,) = pack([np.array([1, 2, 3])], [np.array([4, 5])], budget=99).rows
    seven, two = PolicySpec(name="a"), PolicySpec(name="b", targets=("q_proj", "v_proj"))
    for spec, matrices in ((seven, 28), (two, 8), (PolicySpec(name="c", rank=16), 28), (seven, 28)):
        model.initialise(spec)
        logp_R, _ = model.logprobs(row, torch.ones(2))
        logp_R.sum().backward()
        assert len(list(model.parameters())) == matrices
        assert sum("lora_" in name for name, _ in model._base.named_parameters()) == matrices


def test_a_model_that_also_sees_gets_adapters_in_its_text_decoder_alone(tmp_path: Path) -> None:
    text = {**SIZES, "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 5}
    vision = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "image_size": 28,
        "patch_size": 14,
    }
    tokens = {"mm_tokens_per_image": 1, "boi_token_index": 1, "eoi_token_index": 2, "image_token_index": 3}
    config = Gemma3Config(text_config=text, vision_config=vision, **tokens)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    model = PolicyModel(str(tmp_path), dtype=torch.float32, device="cpu")
    assert model.unshared_because is None
    model.initialise(PolicySpec(name="p"))
    (row,) = pack([np.array([5, 6, 7])], [np.array([8, 9])], budget=99).rows
    logp_R, _ = model.logprobs(row, torch.ones(2))
    logp_R.sum().backward()
    assert all("language_model" in name and weight.grad is not None for name, weight in model.parameters())


@pytest.mark.parametrize("bits", ["4bit", "8bit"])
def test_a_base_model_in_fewer_bits_is_trained_on_gpus(bits: Any, tmp_path: Path) -> None:
    tiny_model(tmp_path / "model", ARCHITECTURES["llama"])
    if not torch.cuda.is_available():
        with pytest.raises(TrainingError, match="needs an NVIDIA GPU"):
            PolicyModel(str(tmp_path / "model"), quantization=bits)
        pytest.skip("no GPU: only the refusal was tried")
    pytest.importorskip("bitsandbytes")
    model = PolicyModel(str(tmp_path / "model"), quantization=bits)
    model.initialise(PolicySpec(name="p"))
    (row,) = pack([np.array([1, 2, 3])], [np.array([4, 5])], budget=99).rows
    logp_R, _ = model.logprobs(row, torch.ones(2))
    logp_R.sum().backward()  # type: ignore[no-untyped-call]
    assert any(weight.grad is not None and weight.grad.abs().sum() > 0 for _, weight in model.parameters())
