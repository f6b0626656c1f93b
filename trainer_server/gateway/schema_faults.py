"""Which JSON schema of a request an engine cannot make a grammar of, and where in it the fault is.

Engines refuse a grammar without naming the tool whose schema it comes from: vLLM answers "Invalid grammar
specification." The gateway looks for faults only after such a refusal, so that it never refuses a schema which an
engine takes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

_BY_NAME = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
"""Keywords whose value has schemas by name."""
_IN_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
"""Keywords whose value is a list of schemas."""
_SINGLE = ("items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames")
"""Keywords whose value is a schema."""
_COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
_NUMBERS = ("minimum", "maximum", "multipleOf")
_TYPES = ("string", "number", "integer", "boolean", "object", "array", "null")
_BEYOND = re.compile(r"\\[pPbBk1-9]|\(\?(?!:)")
"""Parts of JavaScript's patterns that grammars lack: classes of Unicode, boundaries of words, references to groups,
groups that look around or have a name."""


def schema_fault(body: Mapping[str, Any]) -> tuple[str, str] | None:
    """The first fault of a schema that a request's grammar is made of.

    Args:
        body: A checked chat request.

    Returns:
        The parameter that is wrong, and a sentence with the place and the fault; None where none is found.
    """
    for parameter, name, schema in _schemas(body):
        for path, problem in _faults(schema):
            return parameter, f"`{'.'.join([name, *path])}` {problem}"
    return None


def _schemas(body: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """The schemas of the grammar: (parameter, name for messages, schema)."""
    choice = body.get("tool_choice")
    for tool in body.get("tools") or ():
        function = tool["function"]
        is_forced = choice["function"]["name"] == function["name"] if isinstance(choice, dict) else choice == "required"
        if (is_forced or function.get("strict")) and function.get("parameters") is not None:
            yield "tools", f"tools.{function['name']}.parameters", function["parameters"]
    json_schema = (body.get("response_format") or {}).get("json_schema") or {}
    if "schema" in json_schema:
        yield "response_format", "response_format.json_schema.schema", json_schema["schema"]
    if isinstance(schema := (body.get("structured_outputs") or {}).get("json"), dict):
        yield "structured_outputs", "structured_outputs.json", schema


def _faults(root: Any) -> Iterator[tuple[list[str], str]]:
    """The faults of a schema, each with its place. The schema is as deep as a body may be, at most."""
    rest: list[tuple[list[str], Any]] = [([], root)]
    while rest:
        path, schema = rest.pop()
        if isinstance(schema, bool):
            continue
        if not isinstance(schema, dict):
            yield path, f"must be a schema, not {_quote(schema)}"
            continue
        for key, value in schema.items():
            if problem := _problem(key, value, root):
                yield [*path, key], problem
            elif key in _BY_NAME:
                rest += [([*path, key, name], inner) for name, inner in value.items()]
            elif key in _IN_LISTS:
                rest += [([*path, key, str(at)], inner) for at, inner in enumerate(value)]
            elif key in _SINGLE:
                rest.append(([*path, key], value))


def _problem(key: str, value: Any, root: Any) -> str | None:
    """What is wrong with the value of a keyword; None: nothing that is known."""
    if key in _RULES:
        is_right, rule = _RULES[key]
        return None if is_right(value) else f"must be {rule}, not {_quote(value)}"
    if key == "pattern":
        return _pattern_problem(value)
    if key == "$ref":
        return _reference_problem(value, root)
    return None


def _pattern_problem(pattern: Any) -> str | None:
    if not isinstance(pattern, str):
        return f"must be a text, not {_quote(pattern)}"
    if beyond := _BEYOND.search(pattern):
        return f"has {beyond[0]!r}, which a grammar cannot have: leave the pattern out, or write it without"
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        return f"is no pattern that a grammar can have: {error}"
    return None


def _reference_problem(reference: Any, root: Any) -> str | None:
    if not isinstance(reference, str):
        return f"must be a text, not {_quote(reference)}"
    if not reference.startswith("#"):
        return f"names {_quote(reference)}, which is not in the schema: put it under `$defs`"
    at = root
    for step in reference.removeprefix("#").strip("/").split("/"):
        name = step.replace("~1", "/").replace("~0", "~")
        if not name:
            continue
        if not isinstance(at, dict) or name not in at:
            return f"names {_quote(reference)}, which the schema does not have"
        at = at[name]
    return None


def _quote(value: Any) -> str:
    return "null" if value is None else f"{value!r:.60}"


def _is_type(value: Any) -> bool:
    kinds = value if isinstance(value, list) and value else [value]
    return all(isinstance(kind, str) and kind in _TYPES for kind in kinds)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(_BY_NAME, (lambda value: isinstance(value, dict), "an object")),
    **dict.fromkeys(_IN_LISTS, (lambda value: isinstance(value, list), "a list of schemas")),
    **dict.fromkeys(_COUNTS, (_is_count, "a count")),
    **dict.fromkeys(_NUMBERS, (_is_number, "a number")),
    "required": (lambda value: isinstance(value, list | bool), "a list of names"),
    "enum": (lambda value: isinstance(value, list) and bool(value), "a list with a value"),
    "type": (_is_type, f"one of {', '.join(_TYPES)}, or a list of them"),
}
"""What the values of keywords have to be: a check, and words."""
