"""Text for messages and for UTF-8."""

from __future__ import annotations

import re

_SURROGATE = re.compile("[\ud800-\udfff]")


def writable(text: str) -> str:
    """A text that UTF-8 can hold: half surrogate pairs, which models emit, become their escape, `\\ud83d`.

    Applied to JSON, it gives JSON of the same value.
    """
    return _SURROGATE.sub(lambda half: f"\\u{ord(half[0]):04x}", text)


def beginning(text: str, most: int) -> str:
    """The first `most` characters of a text, and how many were left out."""
    left = len(text) - most
    return text if left <= 0 else f"{text[:most]} [… {left:,} more characters]"
