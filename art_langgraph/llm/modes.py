"""Three ways to ask a model for JSON of a schema, and how to parse its answer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ValidationError

T = TypeVar("T", bound=BaseModel)
Message = Mapping[str, Any]
"""A chat message in OpenAI's format."""
Mode = Literal["schema", "tool", "text"]
"""How a model is asked for JSON. "schema": `response_format` with the schema. "tool": a forced tool call. "text": the
schema in the prompt, JSON in the answer's text."""
MODES: tuple[Mode, ...] = ("schema", "tool", "text")
_TOOL = "answer"


def request(mode: Mode, messages: Sequence[Message], answer: type[BaseModel]) -> dict[str, Any]:
    """The part of a chat request that depends on the mode.

    Args:
        mode: How to ask.
        messages: The conversation.
        answer: Class of the answer, whose JSON schema is sent.
    """
    schema = answer.model_json_schema()
    if mode == "schema":
        try:
            json_schema = {"name": answer.__name__, "schema": _close_objects(schema), "strict": True}
        except _Open:
            json_schema = {"name": answer.__name__, "schema": schema, "strict": False}
        return {"messages": list(messages), "response_format": {"type": "json_schema", "json_schema": json_schema}}
    if mode == "tool":
        function = {"name": _TOOL, "description": "Give the answer.", "parameters": schema}
        return {
            "messages": list(messages),
            "tools": [{"type": "function", "function": function}],
            "tool_choice": {"type": "function", "function": {"name": _TOOL}},
        }
    note = f"Answer with one JSON object and nothing else. It must fit this JSON schema:\n{json.dumps(schema)}"
    first, *rest = messages
    if first["role"] == "system":
        return {"messages": [{**first, "content": f"{first['content']}\n\n{note}"}, *rest]}
    return {"messages": [{"role": "system", "content": note}, *messages]}


def read_answer(message: Any) -> str:
    """The answer in a message of litellm's: arguments of the forced tool call, else the text."""
    for call in message.tool_calls or ():
        if call.function.name == _TOOL:
            return str(call.function.arguments)
    return str(message.content or "")


def parse(text: str, answer: type[T]) -> T:
    """The value in an answer's text, also when other text surrounds the JSON. Raises ValueError with the reasons."""
    try:
        return _only(text, answer)
    except ValidationError as error:
        reasons = _reasons(error)
    for inner in reversed(_objects(text.rpartition("</think>")[2])):
        try:
            return _only(inner, answer)
        except ValidationError as error:
            reasons = _reasons(error)
    raise ValueError(reasons)


def _objects(text: str) -> list[str]:
    """The JSON objects in a text, in their order, without those inside others; from its first brace to its last, where
    none can be read."""
    objects, at, decoder = list[str](), text.find("{"), json.JSONDecoder()
    first = at
    while at >= 0:
        try:
            _, end = decoder.raw_decode(text, at)
            objects.append(text[at:end])
        except (ValueError, RecursionError):
            end = at + 1
        at = text.find("{", end)
    return objects or [text[first : text.rfind("}") + 1]] if first >= 0 else []


def _only(text: str, answer: type[T]) -> T:
    """Parses a text as JSON. Refuses duplicate keys, of which JSON parsers silently keep the last."""

    def once(pairs: list[tuple[str, Any]]) -> None:
        names = [name for name, _ in pairs]
        if twice := [name for name in names if names.count(name) > 1]:
            raise ValueError(f"{twice[0]!r} is given twice")

    value = answer.model_validate_json(text)
    json.loads(text, object_pairs_hook=once)
    return value


def _reasons(error: ValidationError) -> str:
    reasons = [f"{'.'.join(map(str, detail['loc']))}: {detail['msg']}".removeprefix(": ") for detail in error.errors()]
    return "; ".join(reasons[:5]) + (f"; and {len(reasons) - 5} more" if len(reasons) > 5 else "")


class _Open(ValueError):
    """A schema has objects with unknown properties, which strict mode does not allow."""


def _close_objects(schema: Any) -> Any:
    """A schema for strict mode: objects are closed and all properties required. Raises _Open where that cannot be."""
    if isinstance(schema, list):
        return [_close_objects(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    result = {key: _close_objects(value) for key, value in schema.items()}
    if schema.get("type") == "object":
        if "properties" not in schema or schema.get("additionalProperties"):
            raise _Open
        result |= {"additionalProperties": False, "required": list(schema["properties"])}
    return result
