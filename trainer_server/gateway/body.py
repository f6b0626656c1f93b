"""Bodies of requests: read as JSON, and checked for what JSON's grammar allows and nothing behind the gateway takes."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from itertools import chain
from typing import Any

from trainer_server.gateway.errors import APIError

MAX_DEPTH = 100
"""Levels of lists and objects in a body. Python's JSON reader and writer, and pydantic's, fail at a few hundred."""


def read_json(raw: bytes) -> object:
    """Reads a body.

    Raises:
        APIError: 400, the body is not JSON, or nested too deeply to be read.
    """
    try:
        return json.loads(raw)
    except RecursionError:
        raise APIError(400, f"the body is nested deeper than {MAX_DEPTH} levels: send it flatter") from None
    except ValueError as error:
        raise APIError(400, f"the body is not JSON: {error}") from None


def check_values(body: Mapping[str, Any], *, halves: bool = False, infinite: bool = False) -> None:
    """Checks all values in a body, at any depth.

    Args:
        body: What was sent.
        halves: Whether texts may hold halves of surrogate pairs, as those of models may.
        infinite: Whether numbers may be NaN or infinite, as those of reward functions may.

    Raises:
        APIError: 400 for NaN, infinity, half of a surrogate pair, and more than MAX_DEPTH levels; it names the field.
    """
    for name, value in body.items():
        if problem := _problem(value, halves, infinite):
            raise APIError(400, f"`{name}` {problem}", param=name)


def _problem(value: object, halves: bool, infinite: bool) -> str | None:
    """What is wrong with a value, or None."""
    rest: list[tuple[object, int]] = [(value, 1)]
    while rest:
        item, depth = rest.pop()
        if isinstance(item, str):
            if not halves and not item.isascii() and (half := _half(item)):
                return f"holds {half!r}, half of a character: cut text between characters"
        elif isinstance(item, float):
            if not infinite and not math.isfinite(item):
                return f"holds {item}, which is no number of JSON: leave it out, or send a finite number"
        elif isinstance(item, dict | list):
            if depth > MAX_DEPTH:
                return f"is nested deeper than {MAX_DEPTH} levels: send it flatter"
            inner = chain(item, item.values()) if isinstance(item, dict) else item
            rest.extend((part, depth + 1) for part in inner)
    return None


def _half(text: str) -> str | None:
    """A half of a surrogate pair in a text, or None."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return text[error.start : error.end]
    return None
