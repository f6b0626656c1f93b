"""The answers of a run that other trainers get, and their messages in the forms that these read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from art_langgraph.trajectory import CompletionCall, Trajectory


def answers(run: Trajectory) -> Iterator[tuple[CompletionCall, dict[str, Any]]]:
    """The calls that count, with their answers. Those that failed, were superseded or came from a cache do not."""
    for call in run.completions:
        if call.message is not None and call.superseded is None and call.error is None and not call.cached:
            yield call, call.message


def parsed_arguments(message: dict[str, Any]) -> dict[str, Any]:
    """A message whose tool calls have arguments as values, as chat templates of open models take them.

    Arguments that are no JSON object stay text.
    """
    if not message.get("tool_calls"):
        return message
    return {**message, "tool_calls": [_parsed(call) for call in message["tool_calls"]]}


def _parsed(call: dict[str, Any]) -> dict[str, Any]:
    function = call.get("function") or {}
    try:
        arguments = json.loads(function.get("arguments", ""))
    except (TypeError, ValueError):
        return call
    return {**call, "function": {**function, "arguments": arguments}} if isinstance(arguments, dict) else call
