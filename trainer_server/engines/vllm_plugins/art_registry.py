"""Prints what the installed vLLM knows, as JSON: its parsers, with the tokens that each needs, its architectures, and
what the plugins miss of it.

A parser that does not find one of its tokens in a model's vocabulary raises when vLLM makes it, and ends vLLM's start.
vLLM lists these tokens nowhere. So each parser is made with a tokenizer that has every token and notes which ones are
looked up, and then once without each of these. The parsers for which vLLM constrains answers by a grammar are named
too.

This folder is on the PYTHONPATH: `python -m art_registry`, in vLLM's environment.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

PARTS = {
    "parsers and architectures": (
        "vllm.model_executor.models.registry:ModelRegistry",
        "vllm.reasoning:ReasoningParserManager.get_reasoning_parser(name)",
        "vllm.reasoning:ReasoningParserManager.list_registered",
        "vllm.tool_parsers:ToolParserManager.get_tool_parser(name)",
        "vllm.tool_parsers:ToolParserManager.list_registered",
    ),
}
"""What this needs of vLLM, as `art_parts` has it."""


class Vocabulary(dict[str, int]):
    """Has every token but one, and notes what is looked up."""

    def __init__(self, missing: str | None) -> None:
        self.lookups: list[str] = []
        self._missing = missing

    def get(self, token: str, default: Any = None) -> Any:
        self.lookups.append(token)
        return default if token == self._missing else 0

    def __getitem__(self, token: str) -> int:
        if token not in self:
            raise KeyError(token)
        return 0

    def __contains__(self, token: object) -> bool:
        return self.get(str(token)) is not None


class Tokenizer:
    """As much of a tokenizer as parsers ask when they are made."""

    all_special_tokens: tuple[str, ...] = ()
    all_special_ids: tuple[int, ...] = ()

    def __init__(self, missing: str | None = None) -> None:
        self.vocab = Vocabulary(missing)

    def get_vocab(self) -> Vocabulary:
        return self.vocab

    def convert_tokens_to_ids(self, token: str) -> int | None:
        token_id: int | None = self.vocab.get(token)
        return token_id

    def encode(self, text: str, **_options: Any) -> list[int]:
        return [0]

    def decode(self, ids: Iterable[int], **_options: Any) -> str:
        return ""


def find_needed_tokens(parser: Callable[[Any], Any]) -> list[str]:
    """The tokens without which a parser cannot be made. None are known of one that needs more than tokens."""
    everything = Tokenizer()
    if not _can_make(parser, everything):
        return []
    return [token for token in dict.fromkeys(everything.vocab.lookups) if not _can_make(parser, Tokenizer(token))]


def _can_make(parser: Callable[[Any], Any], tokenizer: Tokenizer) -> bool:
    try:
        parser(tokenizer)
    except Exception:  # parsers raise what they like
        return False
    return True


def parsers(names: Iterable[str], find: Callable[[str], Any]) -> dict[str, list[str]]:
    """Names of parsers, with the tokens that each needs."""

    def tokens(name: str) -> list[str]:
        try:
            return find_needed_tokens(find(name))
        except Exception:  # a parser whose module lacks a package; vLLM says so when it is asked for it
            return []

    return {name: tokens(name) for name in sorted(names)}


def constraining(names: Iterable[str], find: Callable[[str], Any]) -> list[str]:
    """Names of the tool parsers with which vLLM constrains answers to requests that ask for no constraint."""

    def level(name: str) -> object:
        try:
            return getattr(find(name), "default_tool_strict_level", None)
        except Exception:  # as above
            return None

    return [name for name in sorted(names) if level(name)]


def main() -> None:
    import art_json_calls
    from art_parts import survey
    from vllm import __version__
    from vllm.model_executor.models.registry import ModelRegistry
    from vllm.platforms import current_platform
    from vllm.reasoning import ReasoningParserManager as Reasoning
    from vllm.tool_parsers import ToolParserManager as Tools

    art_json_calls.register()
    answer = {
        "version": __version__,
        "tool_parsers": parsers(Tools.list_registered(), Tools.get_tool_parser),
        "constraining": constraining(Tools.list_registered(), Tools.get_tool_parser),
        "reasoning_parsers": parsers(Reasoning.list_registered(), Reasoning.get_reasoning_parser),
        "architectures": sorted(ModelRegistry.get_supported_archs()),
        "missing": survey(current_platform.is_cpu()),
    }
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
