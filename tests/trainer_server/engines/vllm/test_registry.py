"""What the installed vLLM knows: asked once, and again when another version is installed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.engines.plugins import engine_plugin
from tests.support.homes.model_directories import installed_vllm
from trainer_server.engines.vllm.registry import registry
from trainer_server.wire import EngineError

NAMES = {
    "version": "1",
    "tool_parsers": {"a": ["<a>"]},
    "reasoning_parsers": {"b": []},
    "constraining": ["a"],
    "architectures": ["C"],
}


def test_vllm_is_asked_once_for_each_version(tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    installed_vllm(tmp_path, script=f"echo asked >> {asked}; echo some noise; echo '{json.dumps(NAMES)}'")
    (tmp_path / "engine" / "art-registry.json").unlink()
    assert registry(tmp_path) == registry(tmp_path)
    assert registry(tmp_path).tool_parsers == {"a": ("<a>",)}
    assert asked.read_text().count("asked") == 1
    (tmp_path / "engine" / "lib" / "python3.11" / "site-packages" / "vllm-2.dist-info").mkdir(parents=True)
    registry(tmp_path)
    assert asked.read_text().count("asked") == 2


def test_the_tokens_that_a_parser_needs_are_found_by_making_it() -> None:
    plugin = engine_plugin("art_registry")

    class Two:
        """Needs two tokens, and looks for a third."""

        def __init__(self, tokenizer: Any) -> None:
            self.optional = tokenizer.get_vocab().get("<maybe>")
            vocabulary = tokenizer.get_vocab()
            if "<a>" not in vocabulary or vocabulary["<b>"] is None:
                raise RuntimeError("could not locate")

    class More:
        """Needs more than tokens."""

        def __init__(self, tokenizer: Any) -> None:
            tokenizer.response_template()

    assert plugin.parsers(["two", "more", "none"], {"two": Two, "more": More}.__getitem__) == {
        "more": [],
        "none": [],
        "two": ["<a>", "<b>"],
    }


def test_the_parsers_under_which_a_grammar_constrains_all_calls_are_asked_for() -> None:
    class Plain:
        default_tool_strict_level = None

    class Strict:
        default_tool_strict_level = 1

    parsers = {"plain": Plain, "strict": Strict, "old": object}
    assert engine_plugin("art_registry").constraining([*parsers, "lacking"], parsers.__getitem__) == ["strict"]


def test_a_vllm_that_cannot_be_imported_is_told_with_its_error(tmp_path: Path) -> None:
    installed_vllm(tmp_path, script="echo ImportError: no torch >&2; exit 1")
    (tmp_path / "engine" / "art-registry.json").unlink()
    with pytest.raises(EngineError, match=r"art-langgraph engine install. Its error:\nImportError: no torch"):
        registry(tmp_path)
    with pytest.raises(EngineError, match="vLLM is not installed"):
        registry(tmp_path / "elsewhere")
