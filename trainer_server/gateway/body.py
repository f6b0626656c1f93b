"""Bodies of requests: read as JSON, and checked for what JSON's grammar allows and nothing behind the gateway takes."""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import Any, TypeVar

from trainer_server.gateway.errors import APIError

T = TypeVar("T")

MOST_VALUES = 2**21
"""Values that a body may hold: numbers, texts, names of fields, lists and objects. A body of 1 MiB may be 350,000 empty
lists, and each takes twenty times its bytes, and time. Token ids and log-probabilities are a value each."""
MOST_CHAT_VALUES = 2**18
"""The same for requests of conversations. A message of text is about five values, however long its text."""
MOST_API_VALUES = 2**18
"""The same for the control API, but for what holds tokens or data sets. A list of 100,000 ids has room in it."""
MOST_NOTE_VALUES = 2**17
"""The same for registrations and rewards of rollouts."""
_MOST_DIGITS = 1000
"""Digits of a number. Python reads whole numbers in the square of their length."""
_LARGE = 2**16
"""Bytes of a body from which on it is read in a thread."""
_PIECE = 2**18
"""Bytes that are looked at without a break: other threads wait."""
_DIGITS = re.compile(rb"[0-9]+")
_readers = ThreadPoolExecutor(max_workers=4, thread_name_prefix="body")
"""Few, so that bodies which are read do not take all the time from the event loop."""

MAX_DEPTH = 100
"""Levels of lists and objects in a body. Python's JSON reader and writer, and pydantic's, fail at a few hundred."""


async def off_loop(size: int, work: Callable[[], T]) -> T:
    """Computes something of a body: in a thread where the body is large, so that other requests go on meanwhile.

    Args:
        size: Bytes of the body.
        work: Is called once. It may raise.
    """
    return work() if size <= _LARGE else await asyncio.get_running_loop().run_in_executor(_readers, work)


def check_size(raw: bytes, most: int = MOST_VALUES) -> None:
    """Counts the values in a JSON body without reading it.

    Args:
        raw: The body. Where it is no JSON, what stands before the fault is counted right.
        most: Values that it may have.

    Raises:
        APIError: 413 for more values; 400 for a number of too many digits.
    """
    if len(raw) <= most:  # each value has a byte of its own
        return
    count = 1
    for part in _outside_texts(raw):
        count += sum(map(part.count, (b",", b":", b"[", b"{")))
        if count > most:
            raise APIError(
                413,
                f"the body has more than {most:,} values (numbers, texts, names of fields, lists and objects): send "
                "less at once",
                code="too_many_values",
            )
        if max(map(len, _DIGITS.findall(part)), default=0) > _MOST_DIGITS:
            raise APIError(400, f"a number in the body has more than {_MOST_DIGITS} digits: send what 64 bits can hold")


def _outside_texts(raw: bytes) -> Iterator[bytes]:
    """What stands outside of the texts in a JSON body, in pieces. All of a body that is not in UTF-8."""
    utf8, inside, rest = json.detect_encoding(raw).startswith("utf-8"), 0, b""
    for start in range(0, len(raw), _PIECE):
        piece = raw[start : start + _PIECE]
        if not utf8:
            yield piece
            continue
        piece = (rest + piece).replace(rb"\\", b"")
        rest = b"\\" if piece.endswith(b"\\") else b""  # it belongs to the first character of the next piece
        texts = piece.removesuffix(rest).replace(rb"\"", b"").split(b'"')
        yield b"".join(texts[inside::2])
        inside ^= (len(texts) - 1) & 1


def read_json(raw: bytes, most: int = MOST_VALUES) -> object:
    """Reads a body.

    Args:
        raw: The body.
        most: Values that it may have.

    Raises:
        APIError: 400, the body is not JSON, or nested too deeply to be read; and see `check_size`.
    """
    check_size(raw, most)
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
