"""How many values a JSON text has: counted before it is read, since a small text may hold very many."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

MOST_VALUES = 2**21
"""Values that a text may hold where no other limit is set: numbers, texts, names of fields, lists and objects. A text
of 1 MiB may be 350,000 empty lists, and each takes twenty times its bytes, and time. Token ids and log-probabilities
are a value each."""
MOST_DIGITS = 1000
"""Digits of a number. Python reads whole numbers in the square of their length."""
_LARGE = 2**16
"""Bytes of a text from which on it is read in a thread."""
_PIECE = 2**18
"""Bytes that are looked at without a break: other threads wait."""
_DIGITS = re.compile(rb"[0-9]+")
_readers = ThreadPoolExecutor(max_workers=4, thread_name_prefix="json")
"""Few, so that texts which are read do not take all the time from the event loop."""


class TooManyValues(ValueError):
    """A JSON text has more values than it may."""


class TooManyDigits(ValueError):
    """A number in a JSON text has more than MOST_DIGITS digits."""


async def off_loop(size: int, work: Callable[[], T]) -> T:
    """Computes something of a JSON text: in a thread where it is large, so that other requests go on meanwhile.

    Args:
        size: Bytes of the text.
        work: Is called once. It may raise.
    """
    return work() if size <= _LARGE else await asyncio.get_running_loop().run_in_executor(_readers, work)


def count_values(raw: bytes, most: int) -> None:
    """Counts the values in a JSON text without reading it.

    Args:
        raw: The text, in UTF-8. Where it is no JSON, what stands before the fault is counted right.
        most: Values that it may have.

    Raises:
        TooManyValues: It has more.
        TooManyDigits: A number has more than MOST_DIGITS digits. Short texts are not looked through for them.
    """
    if len(raw) <= most:  # each value has a byte of its own
        return
    count = 1
    for part in _outside_texts(raw):
        count += sum(map(part.count, (b",", b":", b"[", b"{")))
        if count > most:
            raise TooManyValues(f"more than {most:,} values (numbers, texts, names of fields, lists and objects)")
        if max(map(len, _DIGITS.findall(part)), default=0) > MOST_DIGITS:
            raise TooManyDigits(f"a number of more than {MOST_DIGITS} digits")


def _outside_texts(raw: bytes) -> Iterator[bytes]:
    """What stands outside of the texts in a JSON text, in pieces."""
    inside, rest = 0, b""
    for start in range(0, len(raw), _PIECE):
        piece = (rest + raw[start : start + _PIECE]).replace(rb"\\", b"")
        rest = b"\\" if piece.endswith(b"\\") else b""  # it belongs to the first character of the next piece
        texts = piece.removesuffix(rest).replace(rb"\"", b"").split(b'"')
        yield b"".join(texts[inside::2])
        inside ^= (len(texts) - 1) & 1
