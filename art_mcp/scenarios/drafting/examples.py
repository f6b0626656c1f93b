"""Calls that the description of a tool writes out, and values that are like those in them."""

from __future__ import annotations

import ast
import json
import random
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from art_mcp.scenarios.catalog import CatalogTool, properties_of
from art_mcp.scenarios.observe import leaves

MAX_TEXT = 20_000
"""Characters of a description that are read, at most."""

MAX_CALLS = 12
"""Calls of a description that are kept, at most."""

MAX_LITERAL = 1_000
"""Characters of a value, at most."""

_QUOTED = re.compile(r"(['\"`])([^'\"`\n]{1,80})\1")
_NUMBER = re.compile(r"-?\d{1,12}(?:\.\d{1,12})?(?![\w.]*\w)")
_WORD = re.compile(r"(?:true|false)\b", re.IGNORECASE)
_GAP = re.compile(r"(?:[\s,;]|and\b)*")
_UNREADABLE = (ValueError, SyntaxError, RecursionError, MemoryError, TypeError)
_CLOSE = {"[": "]", "{": "}", "(": ")"}


def example_calls(tool: CatalogTool) -> list[dict[str, Any]]:
    """The arguments of the calls in a tool's description.

    A call is written as `move_card("Buy plywood", to="done")`, as `{"name": "Buy plywood"}`, or as what it gives its
    parameters: `name="Buy plywood", to="done"`.
    """
    text, names = tool.description[:MAX_TEXT], [*properties_of(tool)]
    if not names:
        return []
    calls = [*_of_calls(text, tool.name, names), *_of_objects(text, names), *_of_pairs(text, names)]
    whole = [call for at, call in enumerate(calls) if not any(_is_part(call, other) for other in calls[:at])]
    return whole[:MAX_CALLS]


def _is_part(call: dict[str, Any], other: dict[str, Any]) -> bool:
    return all(name in other and other[name] == value for name, value in call.items())


def numeric_literals(text: str, kind: type) -> list[Any]:
    """The lists or objects in a text that hold numbers alone: "a matrix, e.g. [[1, 2], [3, 4]]".

    Args:
        text: The description of a parameter.
        kind: `list` or `dict`.
    """
    values: list[Any] = []
    end = 0
    for match in re.finditer(r"[\[{]", text[:MAX_TEXT]):
        if match.start() >= end and (literal := _literal(text, match.start())) is not None:
            value, end = literal
            if isinstance(value, kind) and value and _all_numbers(value):
                values.append(value)
    return values


def like(value: Any, rng: random.Random) -> Any:
    """A value of the same shape with other numbers. Texts, truth values and zeros stay."""
    if isinstance(value, dict):
        return {key: like(item, rng) for key, item in value.items()}
    if isinstance(value, list):
        return [like(item, rng) for item in value]
    if isinstance(value, bool) or not isinstance(value, int | float) or not value:
        return value
    if isinstance(value, int):
        return rng.randint(1, max(9, 2 * abs(value))) * (1 if value > 0 else -1)
    digits = len(str(value).partition(".")[2])
    return round(value * rng.uniform(0.5, 1.5), min(digits, 4)) or value


def _all_numbers(value: Any) -> bool:
    return all(isinstance(leaf, int | float) for _, leaf in leaves(value))


def _of_calls(text: str, name: str, names: list[str]) -> Iterator[dict[str, Any]]:
    """Calls of the tool by its name, as in Python."""
    for match in re.finditer(rf"(?<!\w){re.escape(name)}\(", text):
        end = _end(text, match.end() - 1)
        with suppress(*_UNREADABLE):
            call = ast.parse(f"f{text[match.end() - 1 : end]}", mode="eval").body
            if isinstance(call, ast.Call) and len(call.args) <= len(names):
                given = dict(zip(names, map(_constant, call.args), strict=False))
                given |= {key.arg: _constant(key.value) for key in call.keywords if key.arg in names}
                if given:
                    yield given


def _of_objects(text: str, names: list[str]) -> Iterator[dict[str, Any]]:
    """JSON objects of which the keys are parameters."""
    for match in re.finditer(r"\{", text):
        literal = _literal(text, match.start())
        if literal is not None and isinstance(literal[0], dict) and literal[0] and set(literal[0]) <= set(names):
            yield literal[0]


def _of_pairs(text: str, names: list[str]) -> Iterator[dict[str, Any]]:
    """Parameters with their values, one after another."""
    call: dict[str, Any] = {}
    end = 0
    for match in re.finditer(rf"(?<![\w.\"'])({'|'.join(map(re.escape, names))})\s*[=:]\s*", text):
        literal = _literal(text, match.end())
        if literal is None or match.start() < end:  # the latter: within the value of another one
            continue
        if call and (match[1] in call or not _GAP.fullmatch(text, end, match.start())):
            yield call
            call = {}
        call[match[1]], end = literal
    if call:
        yield call


def _literal(text: str, start: int) -> tuple[Any, int] | None:
    """The value that begins at a place of a text, and where it ends. None: there is none."""
    if match := _QUOTED.match(text, start):
        return match[2], match.end()
    if match := _NUMBER.match(text, start):
        return json.loads(match[0]) if not re.match(r"-?0\d", match[0]) else match[0], match.end()
    if match := _WORD.match(text, start):
        return match[0].casefold() == "true", match.end()
    if text[start : start + 1] in ("[", "{"):
        end = _end(text, start)
        for read in (json.loads, ast.literal_eval):
            with suppress(*_UNREADABLE):
                value = _as_json(read(text[start:end]))
                return (value, end) if isinstance(value, list | dict) else None
    return None


def _constant(node: ast.expr) -> Any:
    return _as_json(ast.literal_eval(node))


def _as_json(value: Any) -> Any:
    """A value in JSON's types. Raises TypeError or ValueError for one that JSON has not, such as an ellipsis."""
    return json.loads(json.dumps(value, allow_nan=False))


def _end(text: str, start: int) -> int:
    """Where what begins with a bracket ends."""
    open_brackets: list[str] = []
    quote = ""
    for at in range(start, min(start + MAX_LITERAL, len(text))):
        character = text[at]
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        elif character in _CLOSE:
            open_brackets.append(_CLOSE[character])
        elif open_brackets and character == open_brackets[-1]:
            open_brackets.pop()
            if not open_brackets:
                return at + 1
    return start
