"""Arguments of tool calls: one reading for all that meet them, whoever wrote them.

OpenAI's format has them as the text of a JSON object. Other programs leave them out, send "" or null for a call that
needs none, or send the object itself. A policy that explores writes texts that are no JSON, and JSON that is no object.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Sequence
from typing import Any


def read_arguments(arguments: object) -> Any:
    """What the arguments of a tool call mean.

    Args:
        arguments: A text, an object, or None.

    Returns:
        The object; {} where there are none (None, or a text without a character but white space). What is no object is
        returned as it is: a value of another kind, or the text itself where it is no JSON (which has no NaN and no
        infinity) or nested too deeply.
    """
    if arguments is None:
        return {}
    if not isinstance(arguments, str):
        return arguments
    if not arguments.strip():
        return {}
    try:
        read = json.loads(arguments)
        json.dumps(read, allow_nan=False)
    except (ValueError, RecursionError):
        return arguments
    return read


def arguments_object(arguments: object) -> dict[str, Any] | None:
    """The arguments of a tool call, as `read_arguments` reads them; None: they are no object."""
    read = read_arguments(arguments)
    return read if isinstance(read, dict) else None


def arguments_input(arguments: object) -> dict[str, Any]:
    """The arguments of a tool call for a record, which has an object: what is none stands under `input`."""
    read = read_arguments(arguments)
    return read if isinstance(read, dict) else {"input": read}


def arguments_text(arguments: object) -> str:
    """The arguments of a tool call as OpenAI's format and engines have them: a text, "{}" where there are none. A text
    stays as it is, so that what a policy wrote is not changed."""
    if isinstance(arguments, str) and arguments.strip():
        return arguments
    return json.dumps(read_arguments(arguments), ensure_ascii=False)


def complete_calls(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages whose tool calls have all that engines insist on: an id, a type, and arguments that are a text.

    Args:
        messages: In OpenAI's format, checked. They are not changed. A message that lacks nothing is returned itself.
    """
    return [_complete(message, at) for at, message in enumerate(messages)]


def _complete(message: dict[str, Any], at: int) -> dict[str, Any]:
    calls = message.get("tool_calls")
    if not calls:
        return message
    complete = []
    for number, call in enumerate(calls):
        function = call["function"]
        text = arguments_text(function.get("arguments"))
        if function.get("arguments") != text:
            function = {**function, "arguments": text}
        fields = {"id": f"call_{at}_{number}", "type": "function"}
        missing = {name: value for name, value in fields.items() if call.get(name) is None}
        lacks = missing or function is not call["function"]
        complete.append({**call, **missing, "function": function} if lacks else call)
    return message if all(map(operator.is_, complete, calls)) else {**message, "tool_calls": complete}
