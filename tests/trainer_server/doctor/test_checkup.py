"""`art-langgraph doctor`: what it says of models and machines, with the remedies, and its status."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.cli import art
from tests.support.homes.model_directories import TOOLS_SHOWN, VLLM, installed_vllm, model_directory
from tests.support.servers.hub import Hub, serving_hub
from trainer_server.doctor import checkup, environment, model, training
from trainer_server.doctor.finding import Finding, State, worst
from trainer_server.engines.vllm.registry import WHOLE_ADAPTERS
from trainer_server.process.hardware import GIB

QWEN3 = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 300,
    "max_position_embeddings": 4096,
}
HERMES = TOOLS_SHOWN + "<tool_call></tool_call><think></think>"
EXPERTS_SERVED = ("--engine-args", "--lora-target-modules q_proj o_proj experts")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache of a machine with 24 GiB of main memory and no GPU, on which vLLM is installed."""
    monkeypatch.setenv("ART_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("ART_HOME", str(tmp_path / "home"))
    installed_vllm(tmp_path / "cache")
    for place in (environment, model):
        monkeypatch.setattr(place, "gpu_memory", list)
        monkeypatch.setattr(place, "main_memory", lambda: 24 * GIB)
    return tmp_path / "cache"


@pytest.fixture
def untrained(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check of training, which starts a process that imports torch, is left out."""
    monkeypatch.setattr(checkup, "check_training", lambda *_args, **_options: [])


def weights(where: Path) -> Path:
    (where / "model.safetensors").write_bytes(b"")
    return where


def found(*words: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """Status of the command, and its findings by `subject/check`."""
    run = art("doctor", *words, "--json")
    report = json.loads(run.stdout)
    assert (run.exit_code == 1) == (report["state"] == "failed")
    return run.exit_code, {f"{one['subject']}/{one['check']}": one for one in report["checks"]}


@pytest.mark.slow
@pytest.mark.usefixtures("cache")
def test_a_model_that_works_is_said_to_work(tmp_path: Path) -> None:
    """The one test here that examines a model as the trainer does."""
    where = weights(model_directory(tmp_path / "qwen", HERMES, tokens=["<think>", "</think>"], **QWEN3))
    status, checks = found("--model", str(where))
    states = {name: check["state"] for name, check in checks.items()}
    assert {name for name, state in states.items() if state != "ok"} <= {"train/chat template", "environment/disk"}
    assert checks["serve/architecture"]["text"] == "vLLM 9.9 knows Qwen3ForCausalLM"
    assert checks["serve/context"]["text"].startswith("4,096 tokens")
    assert checks["parse/tool calls"]["text"] == "hermes, since the chat template writes <tool_call>"
    assert checks["parse/thoughts"]["text"] == "qwen3, since the chat template writes </think>"
    assert "Qwen3ForCausalLM: a LoRA of rank 16 adapts 14 layers" in checks["train/model"]["text"]
    assert status == (1 if states["train/chat template"] == "failed" else 0)


@pytest.mark.usefixtures("cache", "untrained")
def test_text_output_names_states_and_remedies(tmp_path: Path) -> None:
    where = weights(model_directory(tmp_path / "gemma", "{{ messages }}", **{**QWEN3, "max_position_embeddings": 512}))
    run = art("doctor", "--model", str(where))
    assert run.exit_code == 0, run.output
    lines = [" ".join(line.split()) for line in run.output.splitlines()]
    assert "warning context: 512 tokens" in lines
    assert "warning tool calls: none, since the chat template does not show tools to the model" in lines
    assert any("--tool-call-parser NAME" in line for line in lines)
    assert lines[-1] == "It will work. Warnings: 2."


@pytest.mark.parametrize(
    ("config", "template", "words", "check", "state", "text"),
    [
        ({"architectures": ["Heron"]}, HERMES, (), "serve/architecture", "warning", "which vLLM 9.9 does not know"),
        ({"architectures": []}, HERMES, (), "serve/architecture", "failed", "no architecture"),
        (
            {"hidden_size": 16384, "intermediate_size": 65536, "num_hidden_layers": 99},
            HERMES,
            (),
            "serve/memory",
            "failed",
            "GiB (weights in ",
        ),
        ({"num_experts": 128}, HERMES, (), "serve/memory", "warning", "num_experts=128"),
        ({}, HERMES, ("--gpus", "1", "--gpu-memory", "24"), "serve/memory", "ok", "fits 1 × 24 GiB"),
        (
            {"hidden_size": 16384, "intermediate_size": 65536, "num_hidden_layers": 99},
            HERMES,
            ("--gpus", "1", "--gpu-memory", "24"),
            "serve/memory",
            "failed",
            "engine and trainer do not fit 1 × 24 GiB",
        ),
        ({"max_position_embeddings": None}, HERMES, (), "serve/context", "warning", "names no longest context"),
        ({"max_position_embeddings": 10**8}, HERMES, (), "serve/context", "ok", "the KV cache of this machine holds"),
        (
            {"architectures": ["Heron"], "auto_map": {"AutoConfig": "heron.Heron"}},
            HERMES,
            (),
            "serve/own code",
            "failed",
            "which may not run",
        ),
        (
            {"architectures": ["Heron"], "auto_map": {"AutoConfig": "heron.Heron"}},
            HERMES,
            ("--trust-remote-code",),
            "serve/own code",
            "warning",
            "lets run",
        ),
        ({}, "<tool_call>{{ message.tool_calls }}", (), "parse/tool calls", "warning", "does not show the tools"),
        ({}, HERMES, ("--tool-call-parser", "herms"), "parse/tool calls", "failed", "Did you mean hermes"),
        ({"model_type": "lfm2"}, "{{ tools }}<|tool_list_start|>", (), "parse/thoughts", "warning", "some do not"),
    ],
)
@pytest.mark.usefixtures("cache", "untrained")
def test_what_will_not_work_is_said(
    tmp_path: Path, config: dict[str, Any], template: str, words: tuple[str, ...], check: str, state: str, text: str
) -> None:
    where = weights(model_directory(tmp_path / "model", template, **{**QWEN3, **config}))
    _, checks = found("--model", str(where), *words)
    assert checks[check]["state"] == state
    assert text in checks[check]["text"]
    assert checks[check]["remedy"] or state == "ok" or "--trust-remote-code" in words or "--tool-call-parser" in words


@pytest.mark.usefixtures("untrained")
@pytest.mark.parametrize(
    ("missing", "state", "text"),
    [
        ({}, "ok", "vLLM 9.9 has all that the plugins change in it"),
        ({"fp32 logits": ("m:f", "m:g")}, "warning", "vLLM 9.9 goes without fp32 logits (it has not m:f, m:g)"),
        ({WHOLE_ADAPTERS[0]: ("m:f",)}, "failed", "is not used, as it could apply half of an adapter unseen"),
    ],
)
def test_what_the_plugins_miss_in_vllm_is_named(
    missing: dict[str, tuple[str, ...]], state: str, text: str, cache: Path, tmp_path: Path
) -> None:
    installed_vllm(cache, replace(VLLM, missing=missing))
    _, checks = found("--model", str(weights(model_directory(tmp_path / "model", HERMES, **QWEN3))))
    assert checks["environment/plugins"]["state"] == state
    assert text in checks["environment/plugins"]["text"]
    assert checks["environment/plugins"]["remedy"] == ("" if state == "ok" else "art-langgraph engine install")


@pytest.mark.usefixtures("untrained")
def test_a_machine_without_vllm_is_told_how_to_install_it(cache: Path, tmp_path: Path) -> None:
    (cache / "engine" / "art-engine.json").unlink()
    status, checks = found("--model", str(weights(model_directory(tmp_path / "model", HERMES, **QWEN3))))
    assert status == 1
    assert checks["environment/vLLM"]["remedy"] == "art-langgraph engine install"
    assert checks["parse/tool calls"]["text"].startswith("hermes"), "the choice is made without the names too"


@pytest.mark.usefixtures("cache", "untrained")
def test_weights_that_are_missing_are_named(tmp_path: Path) -> None:
    where = model_directory(tmp_path / "model", HERMES, **QWEN3)
    status, checks = found("--model", str(where))
    assert (status, checks["serve/files"]["state"]) == (1, "failed")
    (where / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "1.safetensors"}}))
    assert found("--model", str(where))[1]["serve/files"]["state"] == "failed"
    (where / "1.safetensors").write_bytes(b"")
    assert found("--model", str(where))[1]["serve/files"]["state"] == "ok"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with serving_hub(tmp_path, monkeypatch) as running:
        running.files["config.json"] = json.dumps(QWEN3)
        running.files["chat_template.jinja"] = HERMES
        yield running


@pytest.mark.usefixtures("cache", "untrained")
def test_of_a_hub_model_only_texts_are_downloaded(hub: Hub) -> None:
    status, checks = found("--model", "hf://lab/open@v1")
    assert status == 0
    assert "`serve` will download about" in checks["serve/files"]["text"]
    assert set(hub.asked) == {"config.json", "chat_template.jinja"}


@pytest.mark.parametrize(("name", "words"), [("lab/gated", "is gated"), ("lab/none", "neither such a directory")])
@pytest.mark.usefixtures("cache", "untrained", "hub")
def test_a_hub_model_that_cannot_be_had_is_a_failed_check(name: str, words: str) -> None:
    status, checks = found("--model", name)
    assert status == 1
    assert words in checks["serve/files"]["text"]


@pytest.mark.usefixtures("cache", "untrained")
def test_a_disk_that_is_too_small_is_said(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "free_disk", lambda _path: 10)
    monkeypatch.setattr(environment, "free_disk", lambda _path: 10)
    _, checks = found("--model", "lab/open")
    assert (checks["serve/files"]["state"], checks["environment/disk"]["state"]) == ("failed", "warning")
    assert "HF_HOME" in checks["serve/files"]["remedy"]


@pytest.mark.parametrize(
    ("adaptable", "model_type", "words", "state", "text"),
    [
        (
            True,
            "gpt_oss",
            ("--gpus", "1", *EXPERTS_SERVED),
            "ok",
            "experts get an adapter where `targets` of a policy has `experts`",
        ),
        (True, "gpt_oss", ("--gpus", "1"), "warning", "not started for them: serve with --engine-args '--lora-target"),
        (True, "gpt_oss", EXPERTS_SERVED, "warning", "no adapter (vLLM adapts experts on GPUs only)"),
        (True, "qwen3_moe", ("--gpus", "1", *EXPERTS_SERVED), "warning", "qwen3_5_moe_text only"),
        (False, "gpt_oss", ("--gpus", "1", *EXPERTS_SERVED), "warning", "experts, routers and MLPs get no adapter"),
    ],
)
@pytest.mark.usefixtures("cache")
def test_whether_experts_get_an_adapter_is_said(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    adaptable: bool,
    model_type: str,
    words: tuple[str, ...],
    state: str,
    text: str,
) -> None:
    shown = {"error": None, "tools": True, "calls": True, "results": True, "thoughts": False}
    mixture = {
        "architecture": "Mixture", "untrainable": None, "separate": None, "adapted": 4, "targets": ["q_proj", "o_proj"],
        "experts": True, "adaptable_experts": adaptable, "parameters": 64, "template": shown,
    }  # fmt: skip
    monkeypatch.setattr(
        training.subprocess, "run", lambda *_args, **_options: SimpleNamespace(stdout=json.dumps(mixture))
    )
    monkeypatch.setattr(checkup, "flavour", lambda: "cpu")
    where = weights(model_directory(tmp_path / "model", HERMES, **{**QWEN3, "model_type": model_type}))
    check = found("--model", str(where), *words)[1]["train/experts"]
    assert check["state"] == state
    assert text in check["text"]
    assert check["text"].endswith("only attention does: q_proj, o_proj")


def test_the_worst_state_counts() -> None:
    assert worst([]) == State.ok
    findings = [Finding("serve", "x", state, "") for state in (State.ok, State.failed, State.warning)]
    assert worst(findings) == State.failed
    assert worst(findings[::2]) == State.warning
