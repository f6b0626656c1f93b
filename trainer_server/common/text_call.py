"""Answers that look like a tool call which the engine's parser did not take: JSON in the text, bare or in a fence."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

TEXT_CALL = "this looks like a call of {name} that the parser did not take"
TEXT_CALL_REMEDY = "`serve --tool-call-parser json_calls` takes such calls: see docs/models/parsers.md"
_START = re.compile(r'\{\s*"(?:name|arguments|parameters)"\s*:')
_LENGTH = 10_000
"""Characters of an answer that are read."""


def text_call(message: Mapping[str, Any] | None, request: Mapping[str, Any]) -> str | None:
    """The tool that an answer without tool calls calls in its text.

    JSON that was asked for is no call: a call has the name of a tool of the request, and arguments that are an object.

    Args:
        message: The assistant's message.
        request: The request, as the ledger has it.

    Returns:
        The tool's name; None: the text has no such call, or the request asked for none.
    """
    content = (message or {}).get("content")
    if not message or not isinstance(content, str) or message.get("tool_calls") or request.get("tool_choice") == "none":
        return None
    names = _tool_names(request.get("tools"))
    text = content[:_LENGTH]
    for start in _START.finditer(text) if names else ():
        try:
            value, _ = json.JSONDecoder().raw_decode(text, start.start())
        except (ValueError, RecursionError):
            continue
        arguments = value.get("arguments", value.get("parameters"))
        if isinstance(value.get("name"), str) and value["name"] in names and isinstance(arguments, dict):
            return str(value["name"])
    return None


def _tool_names(tools: Any) -> set[str]:
    """The names of a request's tools, in the format of chat completions, or of the Responses API and Anthropic."""
    if not isinstance(tools, list):
        return set()
    functions = [tool.get("function", tool) for tool in tools if isinstance(tool, dict)]
    return {str(function["name"]) for function in functions if isinstance(function, dict) and "name" in function}
