"""Tool calls that a model writes as JSON in its text: bare, in a code fence, or between `<tool_call>` marks.

vLLM knows the parser as `--tool-call-parser json_calls` (`art_json_parser`). A call is an object that begins with one
of `KEYS`, names a tool of the request, and has arguments that are an object. Everything else is text, also a call that
is not finished. How an answer is cut into pieces changes nothing: text is held back only where it may become a call.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from typing import Any

import pydantic_core
from art_parts import harmless, have

NAME = "json_calls"
FEATURE = "tool calls as JSON in the text"
_PROTOCOL = "vllm.entrypoints.generate.base.protocol"
PARTS = {
    FEATURE: (
        "vllm.tool_parsers:ToolParserManager.register_lazy_module(name, module_path, class_name)",
        "vllm.tool_parsers.abstract_tool_parser:ToolParser.engine_based_streaming",
        "vllm.parser.abstract_parser:DelegatingParser._flush_engine_parsers(delta_message)",
        f"{_PROTOCOL}:DeltaFunctionCall",
        f"{_PROTOCOL}:DeltaMessage",
        f"{_PROTOCOL}:DeltaToolCall",
        f"{_PROTOCOL}:ExtractedToolCallInformation",
        f"{_PROTOCOL}:FunctionCall",
        f"{_PROTOCOL}:ToolCall",
    )
}
CPU_ONLY = ()

KEYS = ("name", "arguments", "parameters")
_OPEN, _CLOSE, _FENCE = "<tool_call>", "</tool_call>", "```"
_BEGIN = re.compile(r"[{<`]")
_MARK = re.compile(rf"^(?:{_OPEN}|{_FENCE}\w*)?\s*")
_FIRST_KEY = re.compile(r'\{\s*("\w*"?)?')

Call = tuple[str, str]
"""The name of a tool, and its arguments as JSON."""


class CallReader:
    """Reads one answer.

    Args:
        names: The tools that it may call.
    """

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self._rest = ""
        """What is not decided yet: it may become a call, or is the mark behind one."""
        self._space = ""
        """White space that goes before the next text. Where a call is next to it there may be no such text."""
        self._has_text, self._has_calls = False, False
        self._close = ""
        """The mark that may follow the last call; empty: none."""

    def feed(self, piece: str, *, last: bool = False) -> tuple[str, list[Call]]:
        """Reads on.

        Args:
            piece: The next piece of the answer.
            last: Whether the answer ends with it.

        Returns:
            The text that is no call, as far as that is known, and the calls that are complete.
        """
        self._rest += piece
        text, calls = "", []
        while self._rest:
            if self._close:
                behind = self._rest.lstrip()
                if behind.startswith(self._close):
                    self._rest, self._close = behind.removeprefix(self._close), ""
                    continue
                if self._close.startswith(behind) and not last:
                    break
            begin = _BEGIN.search(self._rest)
            if begin is None or begin.start():
                end = begin.start() if begin else len(self._rest)
                text, self._rest = text + self._text(self._rest[:end]), self._rest[end:]
                continue
            call, length = self._call()
            if call:
                calls.append(call)
                self._has_calls = True
                self._close = {"`": _FENCE, "<": _CLOSE}.get(self._rest[0]) or self._close or _CLOSE
            elif length:
                text += self._text(self._rest[:length])
            elif last:  # a call that is not finished, to its end
                length = len(self._rest)
                text += self._text(self._rest)
            else:
                break
            self._rest = self._rest[length:]
        if last and not self._has_calls:
            text, self._space = text + self._space, ""
        return text, calls

    def _text(self, piece: str) -> str:
        """The part of a text that is given now: not the white space at its end."""
        words = piece.strip()
        before, _, behind = piece.partition(words) if words else (piece, "", "")
        space = self._space + before
        if not words:
            self._space = space
            return ""
        lead = space if self._has_text or not self._has_calls else ""
        self._space, self._has_text, self._close = behind, True, ""
        return lead + words

    def _call(self) -> tuple[Call | None, int]:
        """The call that the rest begins with, and its length with the mark before it. Without a call: how many
        characters are text; 0 if that depends on what follows."""
        body = _MARK.sub("", self._rest, count=1)
        if not body or _OPEN.startswith(self._rest) or _FENCE.startswith(self._rest):
            return None, 0
        key = _FIRST_KEY.match(body)
        if not key or not any(f'"{name}"'.startswith(key[1] or "") for name in KEYS):
            return None, 1
        try:
            _, end = _DECODER.raw_decode(body)
            value = pydantic_core.from_json(body[:end], allow_inf_nan=False)
            arguments = self._arguments(value)
            if arguments and "name" in value:
                text = json.dumps(arguments[0], ensure_ascii=False, allow_nan=False)
                return (value["name"], text), len(self._rest) - len(body) + end
        except (ValueError, RecursionError):
            return None, int(not self._may_become_call(body))
        return None, 1

    def _may_become_call(self, body: str) -> bool:
        """Whether text that is no JSON is the beginning of a call."""
        try:
            pydantic_core.from_json(body, allow_inf_nan=False)
        except ValueError as error:
            if "EOF while parsing" in str(error):
                part = pydantic_core.from_json(body, allow_inf_nan=False, allow_partial=True)
                return self._arguments(part) is not None
        return False  # a key is there twice, or a number has too many digits

    def _arguments(self, value: dict[str, Any]) -> list[dict[str, Any]] | None:
        """The arguments that an object has, which may be only a part of itself; None: it is no call."""
        arguments = [value[key] for key in KEYS[1:] if key in value]
        if next(iter(value), KEYS[0]) not in KEYS or not all(isinstance(each, dict) for each in arguments):
            return None
        name = value.get("name")
        return arguments if "name" not in value or (isinstance(name, str) and name in self._names) else None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object. Raises ValueError if a key is there twice: its first value decides while it is read, its last then."""
    value = dict(pairs)
    if len(value) < len(pairs):
        raise ValueError("a key is there twice")
    return value


_DECODER = json.JSONDecoder(object_pairs_hook=_unique)


@harmless
def register() -> None:
    """Puts this into vLLM. Called by vLLM in every process."""
    if have(FEATURE, PARTS):
        from vllm.tool_parsers import ToolParserManager

        ToolParserManager.register_lazy_module(NAME, "art_json_parser", "JSONCalls")
