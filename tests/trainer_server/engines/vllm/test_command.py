"""The command line and the environment of vLLM."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest
from typer.testing import CliRunner

from art_langgraph.cli.main import build
from tests.support.homes.model_directories import installed_vllm, model_directory
from trainer_server.common import Home
from trainer_server.engines.base import EngineSettings
from trainer_server.engines.served_model import ServedModel
from trainer_server.engines.vllm import command as module
from trainer_server.engines.vllm.command import (
    IN_ENGINE,
    child_environment,
    command,
    environment,
    experts_refusal,
    traces_endpoint,
    traces_environment,
)
from trainer_server.engines.vllm.install import directory, engine_python, status
from trainer_server.wire import EngineError
from trainer_server.wire.policies import TARGETS


def installed(cache: Path, script: str = "") -> None:
    """Something that looks like vLLM's environment, whose interpreter is a shell script."""
    python = directory(cache) / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    (directory(cache) / "art-engine.json").write_text(json.dumps({"flavour": "cpu", "requirement": "vllm"}))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ART_CACHE", str(tmp_path / "cache"))
    installed(tmp_path / "cache", 'echo "it started with the key $VLLM_API_KEY"')
    return tmp_path / "cache"


def line(tmp_path: Path, listen: int | Path = 8000, **options: object) -> list[str]:
    others = {name: options.pop(name) for name in ("host", "traces", "fetches") if name in options}
    given = {"base": ServedModel("base", str(tmp_path)), "adapter_slots": 4, "max_rank": 8, "cpu": True, **options}
    return command(EngineSettings(home=Home(tmp_path), **given), listen, **others)  # type: ignore[arg-type]


def test_the_prefix_cache_has_small_blocks_on_cpus(tmp_path: Path, cache: Path) -> None:
    words = line(tmp_path)
    assert words[words.index("--block-size") + 1] == "32"
    assert "--block-size" not in line(tmp_path, cpu=False)
    own = line(tmp_path, args=("--block-size", "64"))
    assert own[-2:] == ["--block-size", "64"], "the last one counts"


def test_gated_delta_net_is_computed_in_bf16_whatever_the_processor_has(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for dtype, usual in (("float32", ["--dtype", "float32"]), ("bfloat16", [])):
        monkeypatch.setattr(module, "cpu_dtype", lambda dtype=dtype: dtype)
        (tmp_path / "config.json").write_text("{}")
        words = line(tmp_path)
        assert words[words.index("--dtype") :][:2] == usual if usual else "--dtype" not in words
        (tmp_path / "config.json").write_text('{"text_config": {"linear_num_value_heads": 4}}')
        words = line(tmp_path)
        assert words[words.index("--dtype") + 1] == "bfloat16"
        assert "--dtype" not in line(tmp_path, cpu=False)


@pytest.mark.parametrize(
    ("most", "sizes"), [("1", "1"), ("5", "1 2 4 5"), ("40", "1 2 4 8 16 24 32 40"), ("100", "… 48 56 64 80 96 100")]
)
def test_on_a_gpu_graphs_are_of_batches_that_there_can_be(tmp_path: Path, cache: Path, most: str, sizes: str) -> None:
    flag, args = "--cudagraph-capture-sizes", ("--max-num-seqs", most)
    words = line(tmp_path, cpu=False, args=args)
    captured = " ".join(words[words.index(flag) + 1 : words.index("--max-model-len")])
    assert captured.endswith(sizes.removeprefix("…"))
    assert captured.startswith("1")
    for own in ((), (*args, "--enforce-eager"), (*args, "-cc.mode=0"), (*args, "-O1")):
        assert flag not in line(tmp_path, cpu=False, args=own)
    assert flag not in line(tmp_path, args=args)


def test_vllm_sends_its_spans_where_the_server_does(
    tmp_path: Path, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    asked = {"ART_OTEL": "1", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318/"}
    assert traces_endpoint(cache, asked) is None
    assert "bin/python -m pip install opentelemetry-sdk" in caplog.text
    packages = directory(cache) / "lib" / "python3.11" / "site-packages"
    (packages / "opentelemetry" / "exporter" / "otlp" / "proto" / "http").mkdir(parents=True)
    assert traces_endpoint(cache, asked) == "http://collector:4318/v1/traces"
    assert traces_endpoint(cache, {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://own/v1/t"}) == "http://own/v1/t"
    assert traces_endpoint(cache, {**asked, "ART_OTEL": "0"}) is None
    assert traces_endpoint(cache, {"ART_OTEL": "1"}) is None
    words = line(tmp_path, traces="http://collector:4318/v1/traces")
    assert words[words.index("--otlp-traces-endpoint") + 1] == "http://collector:4318/v1/traces"
    assert "--otlp-traces-endpoint" not in line(tmp_path)
    assert traces_environment(None) == {}
    assert traces_environment("http://own")["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"] == "http/protobuf"


def test_a_small_machine_computes_the_model_in_the_engine_s_process(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    assert set(IN_ENGINE) <= set(line(tmp_path))
    for extra in (("--tensor-parallel-size", "2"), ("-pp=2",), ("--distributed-executor-backend", "mp")):
        assert IN_ENGINE[1] not in line(tmp_path, args=extra), extra
    assert IN_ENGINE[1] not in line(tmp_path, cpu=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert IN_ENGINE[1] not in line(tmp_path)


def test_adapters_go_where_policies_have_them_and_not_into_experts(tmp_path: Path, cache: Path) -> None:
    """vLLM would prepare every layer for them, experts too, which it cannot on CPUs."""
    words = line(tmp_path)
    start = words.index("--lora-target-modules") + 1
    assert words[start : start + len(TARGETS)] == list(TARGETS)
    assert words[start + len(TARGETS)].startswith("--")


def test_adapters_of_experts_are_refused_where_vllm_applies_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refusal(model_type: str, *args: str) -> str | None:
        return experts_refusal(ServedModel("m", str(model_directory(tmp_path, model_type=model_type))), args)

    experts = ("--lora-target-modules", "q_proj", "experts")
    monkeypatch.setattr(module, "flavour", lambda: "cpu")
    why = refusal("gpt_oss", *experts)
    assert why is not None
    assert "experts on GPUs only. Layers that get an adapter as it is: q_proj, k_proj" in why
    monkeypatch.setattr(module, "flavour", lambda: "cuda")
    assert "--lora-target-modules q_proj" in (refusal("gpt_oss") or "")
    assert refusal("gpt_oss", *experts) is None
    assert "gpt_oss, qwen3_5_moe, qwen3_5_moe_text only" in (refusal("qwen3_moe", *experts) or "")


def test_the_context_fits_the_kv_cache_unless_the_user_names_one(tmp_path: Path, cache: Path) -> None:
    words = line(tmp_path)
    assert words[words.index("--max-model-len") + 1] == "auto"
    own = line(tmp_path, args=("--max-model-len=4096",))
    assert [word for word in own if word.startswith("--max-model-len")] == ["--max-model-len=4096"]


def test_the_models_own_code_runs_only_when_the_user_trusts_it(tmp_path: Path, cache: Path) -> None:
    assert "--trust-remote-code" not in line(tmp_path)
    base = ServedModel("base", str(tmp_path), trust_remote_code=True)
    words = line(tmp_path, base=base)
    assert "--trust-remote-code" in words


def test_the_printed_line_has_the_parsers_and_says_why(tmp_path: Path, cache: Path) -> None:
    model = model_directory(tmp_path / "model", "{{ tools }}<tool_call>{{ call }}", model_type="qwen2")
    installed_vllm(cache)
    printed = CliRunner().invoke(build(), ["engine", "command", "--model", str(model)])
    assert "--enable-auto-tool-choice --tool-call-parser hermes" in printed.stdout
    assert printed.stderr.splitlines() == [
        "tools: hermes, since the chat template writes <tool_call>",
        "reasoning: none, since the chat template writes no thoughts",
    ]
    refused = CliRunner().invoke(build(), ["engine", "command", "--model", str(model), "--tool-call-parser", "x"])
    assert "--tool-call-parser x: the installed vLLM has no such parser" in str(refused.exception)


def test_it_listens_on_a_port_or_on_a_socket(tmp_path: Path, cache: Path) -> None:
    words = line(tmp_path, host="0.0.0.0")
    assert words[words.index("--host") + 1 :][:3] == ["0.0.0.0", "--port", "8000"]
    words = line(tmp_path, listen=tmp_path / "vllm.sock")
    assert words[words.index("--uds") + 1] == str(tmp_path / "vllm.sock")
    assert not {"--host", "--port"} & set(words)


@pytest.mark.parametrize("key", ["", None, "secret"])
def test_the_printed_line_starts_nothing_without_a_key(
    tmp_path: Path, base_model: Path, cache: Path, key: str | None
) -> None:
    printed = CliRunner().invoke(build(), ["engine", "command", "--model", str(base_model)]).stdout
    env = {"PATH": os.environ["PATH"], **({"ART_ENGINE_API_KEY": key} if key is not None else {})}
    done = subprocess.run(["sh", "-c", f"eval {shlex.quote(printed)}"], capture_output=True, text=True, env=env)
    if key:
        assert done.stdout == "it started with the key secret\n"
    else:
        assert (done.stdout, done.returncode != 0) == ("", True)
        assert "ART_ENGINE_API_KEY" in done.stderr


def test_the_key_is_asked_for_before_anything_is_fetched(tmp_path: Path, cache: Path) -> None:
    """vLLM asks the last middleware first."""
    words = line(tmp_path, fetches=True)
    given = [after for word, after in pairwise(words) if word == "--middleware"]
    assert given == ["art_adapters.Fetched", "art_key.KeyOnly"]
    assert "art_adapters.Fetched" not in line(tmp_path)


def test_an_engine_that_fetches_is_told_where_and_where_to_put_it(
    base_model: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["engine", "command", "--model", str(base_model)]
    assert "ART_ADAPTERS" not in CliRunner().invoke(build(), words).stdout
    printed = CliRunner().invoke(build(), [*words, "--adapters-from", "https://art.example.com:8400"]).stdout
    assert {"ART_ADAPTERS_FROM=https://art.example.com:8400", f"ART_ADAPTERS={cache / 'adapters'}"} <= set(
        shlex.split(printed)
    )
    monkeypatch.setenv("ART_ADAPTERS_FROM", "https://art.example.com:8400")
    assert CliRunner().invoke(build(), words).stdout == printed
    refused = CliRunner().invoke(build(), [*words, "--adapters-from", "art.example.com"])
    assert "--adapters-from art.example.com: it must look like https://art.example.com:8400" in str(refused.exception)


def test_vllm_gets_its_own_variables_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "DEBUG")
    monkeypatch.setenv("RAY_ADDRESS", "here")
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    monkeypatch.setenv("VLLM_API_KEY", "of another vLLM")
    assert child_environment()["VLLM_LOGGING_LEVEL"] == "DEBUG"
    assert not {"RAY_ADDRESS", "OPENAI_API_KEY", "VLLM_API_KEY"} & child_environment().keys()
    assert child_environment(["RAY_ADDRESS"])["RAY_ADDRESS"] == "here"


def test_the_hub_is_asked_when_the_user_wants_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = EngineSettings(base=ServedModel("base", str(tmp_path)), home=Home(tmp_path), cpu=True)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    assert environment(settings, "key")["HF_HUB_OFFLINE"] == "1"
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")  # for a draft model of the hub, say
    assert environment(settings, "key")["HF_HUB_OFFLINE"] == "0"


def test_an_installation_in_a_home_is_not_used_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("ART_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("ART_HOME", raising=False)
    before = tmp_path / ".art-langgraph" / "cache"
    installed(before)
    move = f"mkdir -p {tmp_path}/cache && mv {before}/engine {tmp_path}/cache"
    words = f"move it ({move}) or remove it"
    with pytest.raises(EngineError) as missing:
        engine_python(tmp_path / "cache")
    assert words in str(missing.value)
    shown = CliRunner().invoke(build(), ["engine", "status"])
    assert (shown.exit_code, words in shown.output) == (1, True)
    subprocess.run(["sh", "-c", move], check=True)
    assert status(tmp_path / "cache") is not None
    shown = CliRunner().invoke(build(), ["engine", "status"])
    assert (shown.exit_code, "not used" in shown.output) == (0, False)
