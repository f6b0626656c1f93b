"""Bodies of requests: read as JSON, and checked for what JSON's grammar allows and nothing behind the gateway takes."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from itertools import chain
from typing import Any

from trainer_server.gateway.errors import APIError
from trainer_server.wire.json_size import MOST_VALUES, TooManyDigits, TooManyValues, count_values

MOST_CHAT_VALUES = 2**18
"""Values of requests of conversations; see MOST_VALUES. A message of text is about five, however long its text."""
MOST_API_VALUES = 2**18
"""The same for the control API, but for what holds tokens or data sets. A list of 100,000 ids has room in it."""
MOST_NOTE_VALUES = 2**17
"""The same for registrations and rewards of rollouts."""
MAX_DEPTH = 100
"""Levels of lists and objects in a body. Python's JSON reader and writer, and pydantic's, fail at a few hundred."""


def check_size(raw: bytes, most: int = MOST_VALUES) -> None:
    """Checks that a JSON body is in no other encoding than UTF-8, and counts its values without reading it.

    Args:
        raw: The body. Where it is no JSON, what stands before the fault is counted right.
        most: Values that it may have.

    Raises:
        APIError: 413 for more values; 400 for a number of too many digits, and for UTF-16, UTF-32 or a byte order mark.
    """
    if json.detect_encoding(raw) != "utf-8":  # Python's JSON reader takes others, in which values are not counted right
        what = "the body is in another encoding than UTF-8, or begins with a byte order mark: send JSON in UTF-8"
        raise APIError(400, what, code="not_utf8")
    try:
        count_values(raw, most)
    except TooManyValues as error:
        raise APIError(413, f"the body has {error}: send less at once", code="too_many_values") from None
    except TooManyDigits as error:
        raise APIError(400, f"the body has {error}: send what 64 bits can hold") from None


def read_json(raw: bytes, most: int = MOST_VALUES) -> object:
    """Reads a body.

    Args:
        raw: The body.
        most: Values that it may have.

    Raises:
        APIError: 400, the body is not JSON, or nested too deeply to be read; 413 and 400 as `check_size` raises them.
    """
    check_size(raw, most)
    try:
        return json.loads(raw.decode())
    except RecursionError:
        raise APIError(400, f"the body is nested deeper than {MAX_DEPTH} levels: send it flatter") from None
    except ValueError as error:
        raise APIError(400, f"the body is not JSON: {error}") from None


def read_object(raw: bytes, most: int = MOST_VALUES) -> dict[str, Any]:
    """Reads a body that is a JSON object, and checks its values.

    Args:
        raw: The body.
        most: Values that it may have.

    Raises:
        APIError: 400 or 413: the body cannot be read, is no object, or has a value that `check_values` refuses.
    """
    body = read_json(raw, most)
    if not isinstance(body, dict):
        raise APIError(400, "the body must be a JSON object")
    check_values(body)
    return body


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
