"""Model directories without weights: configuration, chat template and tokenizer, as small as they can be."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from trainer_server.engines.vllm.registry import Registry, installed_key


def _parsers(*names: str, **tokens: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """Names of parsers, and the tokens of those that need some."""
    return dict(sorted({**dict.fromkeys(names, ()), **tokens}.items()))


VLLM = Registry(
    version="9.9",
    tool_parsers=_parsers(
        "deepseek_v31",
        "ernie45",
        "functiongemma",
        "gemma4",
        "glm45",
        "glm47",
        "granite",
        "granite4",
        "hermes",
        "hunyuan_a13b",
        "jamba",
        "kimi_k2",
        "lfm2",
        "llama4_json",
        "llama4_pythonic",
        "minimax_m2",
        "mistral",
        "olmo3",
        "openai",
        "phi4_mini_json",
        "pythonic",
        "qwen3_coder",
        "seed_oss",
        "xlam",
        deepseek_v3=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
        llama3_json=("<|python_tag|>",),
    ),
    reasoning_parsers=_parsers(
        "deepseek_v3",
        "ernie45",
        "gemma4",
        "glm45",
        "granite",
        "hunyuan_a13b",
        "kimi_k2",
        "minimax_m2",
        "mistral",
        "nemotron_v3",
        "olmo3",
        "openai_gptoss",
        "qwen3",
        "seed_oss",
        deepseek_r1=("<think>", "</think>"),
    ),
    constraining=("glm47",),
    architectures=("LlamaForCausalLM", "Qwen3ForCausalLM"),
)
"""Names of a vLLM."""
TOOLS_SHOWN = "{% if tools %}{{ tools | tojson }}{% endif %}"


def model_directory(
    where: Path, template: str | None = None, *, tokens: Iterable[str] | None = None, **config: Any
) -> Path:
    """Writes a model directory.

    Args:
        where: The directory to make.
        template: The chat template; None: the model has none.
        tokens: Added tokens of its tokenizer; None: it has no tokenizer.json.
        config: Values of config.json.
    """
    where.mkdir(parents=True, exist_ok=True)
    (where / "config.json").write_text(json.dumps(config))
    if template is not None:
        (where / "chat_template.jinja").write_text(template)
    if tokens is not None:
        content = {"added_tokens": [{"content": token} for token in tokens], "model": {"vocab": {}}}
        (where / "tokenizer.json").write_text(json.dumps(content))
    return where


def installed_vllm(cache: Path, known: Registry = VLLM, *, script: str = "exit 1") -> None:
    """Makes something look like an installed vLLM that was asked for its names before."""
    python = cache / "engine" / "bin" / "python"
    python.parent.mkdir(parents=True, exist_ok=True)
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    (cache / "engine" / "art-engine.json").write_text(json.dumps({"flavour": "cpu", "requirement": "vllm"}))
    names = {name: getattr(known, name) for name in Registry.__slots__}
    (cache / "engine" / "art-registry.json").write_text(json.dumps({"installed": installed_key(cache), **names}))
