"""Plans: sizes from configs against published ones and against what layers keep in fact; commands that parse."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
from typer.testing import CliRunner

from art_langgraph.cli.main import build
from trainer_server.planning.model_shape import KNOWN, ModelShape
from trainer_server.planning.plan import (
    ALLOCATOR,
    ENGINE_OVERHEAD,
    GIB,
    TRAINER_OVERHEAD,
    Workload,
    make_plan,
    remedies,
)
from trainer_server.training.examine import examine
from trainer_server.training.model.lora import lora_config
from trainer_server.training.model.policy import PolicyModel
from trainer_server.training.model.tree import pack
from trainer_server.wire import ConfigError, PolicySpec


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("SmolLM2-135M", 0.1345), ("SmolLM2-1.7B", 1.711), ("Qwen2.5-0.5B", 0.494), ("Qwen2.5-7B", 7.616),
        ("Qwen3-0.6B", 0.596), ("Qwen3-4B", 4.022), ("Qwen3-8B", 8.191), ("Qwen3-32B", 32.762),
        ("Llama-3.2-1B", 1.236), ("Llama-3.2-3B", 3.213), ("Llama-3.1-8B", 8.030), ("Llama-3.1-70B", 70.554),
        ("Mistral-7B-v0.3", 7.248), ("Qwen3-30B-A3B", 30.532),
    ],
)  # fmt: skip
def test_parameters_are_those_published(name: str, billions: float) -> None:
    assert KNOWN[name].parameters / 1e9 == pytest.approx(billions, rel=2e-3)


@pytest.mark.parametrize(("name", "kib"), [("Llama-3.1-8B", 128), ("Qwen3-8B", 144), ("Qwen2.5-7B", 56)])
def test_kv_cache_of_a_token(name: str, kib: int) -> None:
    assert KNOWN[name].kv_bytes_per_token == kib * 1024


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four layers as SmolLM2-135M has thirty, with random weights."""
    path = tmp_path_factory.mktemp("narrow") / "model"
    config = LlamaConfig(
        vocab_size=1024, hidden_size=576, intermediate_size=1536, num_hidden_layers=4, num_attention_heads=9,
        num_key_value_heads=3, head_dim=64, tie_word_embeddings=True,
    )  # fmt: skip
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def model(narrow: Path) -> PolicyModel:
    model = PolicyModel(str(narrow), device="cpu")
    model.initialise(PolicySpec(name="p", rank=8))
    return model


def test_parameters_are_those_of_the_model_and_its_adapter(narrow: Path, model: PolicyModel) -> None:
    shape = ModelShape.find(str(narrow))
    assert shape == replace(KNOWN["SmolLM2-135M"], layers=4, vocabulary=1024)
    own = sum(weight.numel() for _, weight in model.parameters())
    assert shape.lora_parameters(8) == own
    whole = sum(weight.numel() for weight in model._base.parameters())
    assert shape.parameters == whole - own


@pytest.mark.parametrize(("prompt", "answer", "count"), [(120, 120, 1), (120, 30, 4)])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_what_a_layer_keeps_of_a_token(
    narrow: Path, model: PolicyModel, prompt: int, answer: int, count: int, checkpointing: bool
) -> None:
    rng = np.random.default_rng(0)
    shared = rng.integers(0, 1000, prompt)
    answers = [rng.integers(0, 1000, answer) for _ in range(count)]
    (row,) = pack([shared] * count, answers, budget=8192, share=True).rows
    frozen = {one.untyped_storage().data_ptr() for one in (*model._base.parameters(), *model._base.buffers())}
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in frozen:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    model.checkpoint_above = 0 if checkpointing else 10_000
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        logps, _ = model.logprobs(row, torch.ones(len(row.target_R)))
    tokens = len(row.tokens_T)
    shape = ModelShape.find(str(narrow))
    between = (
        shape.layers * shape.hidden_size * 4
    )  # on CPUs the residual stream is fp32; on GPUs, planned for, half of it
    expected = between if checkpointing else shape.kept_bytes_per_token
    ends = 4 * shape.hidden_size + 2 * shape.hidden_size  # the last norm in fp32, and what the head is given
    assert sum(kept.values()) / tokens == pytest.approx(expected + ends, rel=0.1)
    del logps


SIZES = {
    "vocab_size": 1024, "hidden_size": 512, "intermediate_size": 768, "num_attention_heads": 8,
    "num_key_value_heads": 2, "head_dim": 64, "num_hidden_layers": 3, "tie_word_embeddings": True, "pad_token_id": 0,
}  # fmt: skip
GATED_DELTA = {
    "layer_types": ["linear_attention", "full_attention", "linear_attention"], "linear_num_value_heads": 8,
    "linear_num_key_heads": 4, "linear_key_head_dim": 64, "linear_value_head_dim": 32,
}  # fmt: skip
MIXTURE = {"num_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 192}
SHARED = {**MIXTURE, "shared_expert_intermediate_size": 192}
KINDS: dict[str, dict[str, Any]] = {
    "qwen3": {},
    "phi3": {},
    "qwen3_5_text": GATED_DELTA,
    "qwen3_moe": {**MIXTURE, "mlp_only_layers": [1]},
    "qwen3_next": {**GATED_DELTA, **SHARED},
    "qwen3_5_moe_text": {**GATED_DELTA, **SHARED},
    "mixtral": {"num_local_experts": 8, "num_experts_per_tok": 2},
    "gpt_oss": {"num_local_experts": 16, "num_experts_per_tok": 4, "layer_types": ["full_attention"] * 3},
}


def shape_and_model(kind: str, where: Path) -> tuple[ModelShape, Any]:
    """What plan reads of a model of a kind, and the model, without memory."""
    config = AutoConfig.for_model(kind, **SIZES, **KINDS[kind])
    config.save_pretrained(where)
    with torch.device("meta"):
        return ModelShape.find(str(where)), AutoModelForCausalLM.from_config(config)


@pytest.mark.parametrize("kind", KINDS)
def test_plan_counts_what_the_trainer_adapts(kind: str, tmp_path: Path) -> None:
    shape, model = shape_and_model(kind, tmp_path)
    adapter = examine(tmp_path, rank=8)
    assert list(shape.targets) == adapter["targets"]
    assert shape.lora_parameters(8) == adapter["parameters"]
    assert sum(one.layers for one in shape.adapted_matrices) == adapter["adapted"]
    # Norms of heads, convolutions, biases and the gate of a shared expert are not in the formulas.
    assert shape.parameters == pytest.approx(sum(weight.numel() for weight in model.parameters()), rel=3e-3)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "num_experts_per_tok" in KINDS[kind]])
def test_adapters_of_experts_are_counted_as_peft_makes_them(kind: str, tmp_path: Path) -> None:
    shape, base = shape_and_model(kind, tmp_path)
    with torch.device("meta"):
        spec = PolicySpec(name="p", rank=8, targets=(*shape.targets, "experts"))
        adapted = get_peft_model(base, lora_config(base, spec))
    count = sum(weight.numel() for weight in adapted.parameters() if weight.requires_grad)
    assert shape.lora_parameters(8, experts=True) == count > 4 * shape.lora_parameters(8)


def test_adapters_of_experts_have_room_in_each_slot_and_in_the_trainer() -> None:
    without = Workload("mixture", KNOWN["Qwen3-30B-A3B"], gpus=4, gpu_memory=80, policies=2)
    plain, plan = make_plan(without), make_plan(replace(without, experts=True))
    each = 48 * 128 * 16 * ((2048 + 2 * 768) + (768 + 2048))  # parameters
    for before, items, name, size in (
        (plain.engine_items, plan.engine_items, "adapter slots", 4 * 2),
        (plain.trainer_items, plan.trainer_items, "LoRA, gradients, AdamW", 16),
    ):
        grown, small = (next(item.gib for item in of if item.name == name) for of in (items, before))
        assert grown - small == pytest.approx(each * size / GIB)
    assert "--lora-target-modules" not in plain.command
    args = shlex.split(shlex.split(plan.command)[-1])
    assert args[args.index("--lora-target-modules") + 1 :] == ["q_proj", "k_proj", "v_proj", "o_proj", "experts"]


def test_experts_of_which_vllm_reads_no_adapter_are_named(tmp_path: Path) -> None:
    line = ["plan", "--gpu-memory", "192", "--experts", "--model"]
    refused = CliRunner().invoke(build(), [*line, "Qwen/Qwen3-30B-A3B"]).output
    assert "The server refuses policies that adapt the experts of this model: vLLM reads adapters of experts" in refused
    assert (
        "gpt_oss"
        in json.loads(CliRunner().invoke(build(), [*line, "Qwen3-30B-A3B", "--json"]).output)["experts_refused"]
    )
    AutoConfig.for_model("gpt_oss", **SIZES, **KINDS["gpt_oss"]).save_pretrained(tmp_path)
    read = CliRunner().invoke(build(), [*line, str(tmp_path)]).output
    assert "--lora-target-modules" in read
    assert "refuses" not in read


def test_a_dense_model_has_no_experts_to_plan_for() -> None:
    run = CliRunner().invoke(build(), ["plan", "--model", "Qwen/Qwen3-8B", "--experts"])
    assert isinstance(run.exception, ConfigError)
    assert "Qwen/Qwen3-8B is no mixture of experts" in str(run.exception)


@pytest.mark.parametrize("key", ["kv_lora_rank", "mamba_d_state"])
def test_layers_that_the_formulas_are_not_for_are_refused(key: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**SIZES, key: 16}))
    with pytest.raises(ConfigError, match=f"{key}: the arithmetic is for attention and Gated DeltaNet"):
        ModelShape.find(str(tmp_path))


def test_a_hybrid_with_experts_keeps_what_is_planned_for_and_a_state_for_each_request(tmp_path: Path) -> None:
    config = AutoConfig.for_model("qwen3_5_moe_text", **SIZES, **KINDS["qwen3_5_moe_text"])
    AutoModelForCausalLM.from_config(config).to(torch.bfloat16).save_pretrained(tmp_path)
    model, shape = PolicyModel(str(tmp_path), device="cpu"), ModelShape.find(str(tmp_path))
    model.initialise(PolicySpec(name="p", rank=8))
    rng = np.random.default_rng(0)
    (row,) = pack([rng.integers(0, 1000, 120)], [rng.integers(0, 1000, 121)], budget=8192).rows
    frozen = {one.untyped_storage().data_ptr() for one in (*model._base.parameters(), *model._base.buffers())}
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in frozen:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        logps, _ = model.logprobs(row, torch.ones(len(row.target_R)))
    ends = (6 + 4 * shape.layers) * shape.hidden_size  # as above
    assert sum(kept.values()) / len(row.tokens_T) == pytest.approx(shape.kept_bytes_per_token + ends, rel=0.1)
    del logps
    assert shape.kv_bytes_per_token == 2 * 1 * 2 * 64 * 2
    assert shape.state_bytes == 2 * (8 * 64 * 32 * 4 + 3 * (2 * 4 * 64 + 8 * 32) * 2)
    plan = make_plan(Workload("hybrid", shape, gpus=1, gpu_memory=24))
    tokens = plan.kv_gib * GIB / (shape.kv_bytes_per_token + shape.state_bytes / 2048)
    assert plan.kv_tokens == int(tokens)


def test_a_mixture_of_experts_is_planned_whole() -> None:
    shape = KNOWN["Qwen3-30B-A3B"]
    assert shape.targets == ("q_proj", "k_proj", "v_proj", "o_proj")
    plan = make_plan(Workload("mixture", shape, gpus=2, gpu_memory=80))
    assert plan.fits
    assert (plan.tensor, plan.trainer) == (1, 1)
    assert not make_plan(Workload("mixture", shape, gpus=1, gpu_memory=48)).fits


def test_a_trained_adapter_has_the_size_that_slots_are_planned_for(
    narrow: Path, model: PolicyModel, tmp_path: Path
) -> None:
    model.save(tmp_path)
    size = (tmp_path / "adapter_model.safetensors").stat().st_size
    assert size == pytest.approx(4 * ModelShape.find(str(narrow)).lora_parameters(8), rel=0.02)


QWEN = Workload("Qwen/Qwen3-8B", KNOWN["Qwen3-8B"], gpus=1, gpu_memory=80)


def test_one_gpu_is_shared() -> None:
    plan = make_plan(QWEN)
    assert plan.fits
    assert (plan.engines, plan.trainer) == (1, 0)
    used = plan.trainer_gib + plan.kv_gib + sum(item.gib for item in plan.engine_items)
    assert 0.88 * 80 < used <= 0.9 * 80
    assert "--engine-gpus" not in plan.command


def test_engine_and_trainer_take_turns_where_they_do_not_fit_beside_each_other() -> None:
    plan = make_plan(replace(QWEN, gpu_memory=48))
    assert plan.fits
    assert plan.turns
    assert "--share-gpu" in shlex.split(plan.command)
    engine = plan.kv_gib + sum(item.gib for item in plan.engine_items)
    assert max(engine + TRAINER_OVERHEAD, plan.trainer_gib + ENGINE_OVERHEAD) <= 0.9 * 48
    assert engine + plan.trainer_gib > 48
    assert "--share-gpu" not in make_plan(QWEN).command


def test_the_trainer_has_memory_for_whole_rows_where_the_engine_has_enough_for_its_requests() -> None:
    small = Workload("small", KNOWN["Qwen3-0.6B"], gpus=1, gpu_memory=80)
    plan = make_plan(small)
    least = replace(plan, whole=False)
    assert plan.fits
    assert plan.whole
    assert least.requests > plan.requests >= small.concurrency
    kept = 8192 * small.shape.kept_bytes_per_token * ALLOCATOR / GIB
    assert next(item.gib for item in plan.trainer_items if item.name == "activations") == pytest.approx(kept)
    for tight in (replace(small, gpu_memory=24), replace(small, concurrency=plan.requests + 1)):
        assert make_plan(tight).fits
        assert not make_plan(tight).whole


def test_many_gpus_are_divided_without_rest() -> None:
    for gpus in range(2, 17):
        plan = make_plan(replace(QWEN, gpus=gpus))
        assert plan.fits
        assert plan.engines * plan.tensor + plan.trainer == gpus
        words = shlex.split(plan.command)
        given = [words[at + 1] for at, word in enumerate(words) if word in ("--engine-gpus", "--trainer-gpus")]
        assert [int(gpu) for span in given for gpu in span.split(",")] == list(range(gpus))


def test_a_large_model_is_cut_for_engine_and_trainer() -> None:
    plan = make_plan(Workload("llama", KNOWN["Llama-3.3-70B"], gpus=8, gpu_memory=80))
    assert plan.fits
    assert (plan.tensor, plan.trainer) == (4, 4)
    assert "--tensor-parallel-size 4" in plan.command
    assert "--trainer-processes 4" in plan.command


def test_more_concurrency_or_context_needs_no_more_than_is_said() -> None:
    plan = make_plan(replace(QWEN, gpus=2))
    assert plan.kv_tokens == int(plan.kv_gib * GIB / QWEN.shape.kv_bytes_per_token)
    assert make_plan(replace(QWEN, gpus=2, context=plan.kv_tokens)).fits
    assert not make_plan(replace(QWEN, gpus=2, context=plan.kv_tokens + 1)).fits


def test_what_does_not_fit_is_told_what_would() -> None:
    workload = replace(QWEN, gpu_memory=24)
    assert not make_plan(workload).fits
    said = remedies(workload)
    assert said
    more, larger = said[0], said[1]
    assert make_plan(replace(workload, gpus=int(more.split()[0]))).fits
    assert make_plan(replace(workload, gpu_memory=float(larger.split()[2]))).fits


def test_4_bit_weights_are_a_third_and_less() -> None:
    shape = KNOWN["Llama-3.1-70B"]
    assert 0.27 < shape.weight_bytes_4bit / shape.weight_bytes < 0.33
    assert ALLOCATOR > 1


def test_configs_of_other_kinds_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"num_experts": 128, "hidden_size": 2048}))
    with pytest.raises(ConfigError, match="num_experts=128"):
        ModelShape.find(str(tmp_path))
    file.write_text(json.dumps({"hidden_size": 2048}))
    with pytest.raises(ConfigError, match="num_attention_heads"):
        ModelShape.find(str(file))
    sizes = {"num_attention_heads": 8, "hidden_size": 2048, "num_hidden_layers": 2, "vocab_size": 9}
    for odd in ([16384, 8192], None):
        file.write_text(json.dumps({**sizes, "intermediate_size": odd}))
        with pytest.raises(ConfigError, match="no config of a dense decoder with equal layers"):
            ModelShape.find(str(file))
    file.write_text("{")
    with pytest.raises(ConfigError, match="not JSON"):
        ModelShape.find(str(file))
    with pytest.raises(ConfigError, match="Qwen3-8B"):
        ModelShape.find("nobody/Knows-9B")


def test_the_command_prints_the_table_and_the_line_to_run(narrow: Path) -> None:
    run = CliRunner().invoke(build(), ["plan", "--model", str(narrow), "--gpus", "1", "--gpu-memory", "24"])
    assert run.exit_code == 0, run.output
    for word in (
        "For 1 × 24 GiB of GPU memory (--gpus, --gpu-memory)",
        "left for the KV cache",
        "AdamW",
        "3 KiB a token",
        "art-langgraph serve --model",
        "--adapter-slots 3",
        "adapters: q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj",
        "tools: none, since the model has no chat template",
        "reasoning: none, since the chat template writes no thoughts",
    ):
        assert word in run.output
    line = shlex.split(run.output.strip().splitlines()[-1])
    refused = CliRunner().invoke(build(), [*line[1:], "--port", "-1"])
    assert "--port" in refused.output  # all else is known to `serve`
    assert "No such option" not in refused.output


def test_the_command_says_that_it_does_not_fit() -> None:
    run = CliRunner().invoke(build(), ["plan", "--model", "Qwen/Qwen3-32B", "--gpus", "1", "--gpu-memory", "80"])
    assert run.exit_code == 1
    assert "does not fit" in run.output
    assert "It would with" in run.output


def test_a_context_is_none_that_the_model_does_not_have(narrow: Path, tmp_path: Path) -> None:
    config = json.loads((narrow / "config.json" if narrow.is_dir() else narrow).read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 4096}))
    words = ["plan", "--model", str(tmp_path), "--gpu-memory", "24"]
    assert "--max-model-len 4096" in CliRunner().invoke(build(), words).output
    refused = CliRunner().invoke(build(), [*words, "--context", "5000"])
    assert "--context 5000" in str(refused.exception)
    assert "allows 4,096 tokens at most" in str(refused.exception)
