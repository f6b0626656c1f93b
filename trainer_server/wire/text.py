"""Text for messages and for UTF-8, and times that people write."""

from __future__ import annotations

import re
import time
from datetime import datetime

from trainer_server.wire.errors import ConfigError

_SURROGATE = re.compile("[\ud800-\udfff]")
UNSEEN = "\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff"
"""Characters that show nothing and may change how the text around them is shown, for a class of a regular expression:
controls (sequences that command a terminal begin with one), marks of direction, characters without width."""
_UNSEEN = re.compile(f"[{UNSEEN}]")
_DURATION = re.compile(r"(\d+(?:\.\d+)?)([mhdw])")
_SECONDS = {"m": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}


def writable(text: str) -> str:
    """A text that UTF-8 can hold: half surrogate pairs, which models emit, become their escape, `\\ud83d`.

    Applied to JSON, it gives JSON of the same value.
    """
    return _SURROGATE.sub(lambda half: f"\\u{ord(half[0]):04x}", text)


def beginning(text: str, most: int) -> str:
    """The first `most` characters of a text, and how many were left out."""
    rest = len(text) - most
    return text if rest <= 0 else f"{text[:most]} [… {rest:,} more characters]"


def quantity(number: int, noun: str) -> str:
    """A number with its noun, whose plural ends in s: "1 request", "2 requests", "1,024 requests"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def visible(text: str) -> str:
    """A text of a user or a model as a terminal can show it: characters that cannot be seen are named by their number,
    so that they command nothing. Line breaks and tabs stay."""
    return _UNSEEN.sub(lambda odd: f"<U+{ord(odd[0]):04X}>", text)


def duration(text: str, option: str) -> float:
    """The seconds of `30m`, `12h`, `30d` or `2w`.

    Args:
        text: The duration.
        option: The option that it was given to, for messages.

    Raises:
        ConfigError: The text is no duration.
    """
    if match := _DURATION.fullmatch(text):
        return float(match[1]) * _SECONDS[match[2]]
    raise ConfigError(f"{option} {text}: expected a duration such as 30m, 12h, 30d or 2w")


def moment(text: str, option: str = "--since") -> float:
    """The Unix time of `30m`, `2h` or `7d` ago, or of an ISO date.

    Args:
        text: The time.
        option: The option that it was given to, for messages.

    Raises:
        ConfigError: The text is no time.
    """
    if _DURATION.fullmatch(text):
        return time.time() - duration(text, option)
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        raise ConfigError(f"{option} {text}: expected 30m, 2h, 7d, or a date such as 2026-01-31") from None


def storable(text: str) -> str:
    """A text that PostgreSQL can hold: it has no character 0."""
    return text.replace("\0", "\ufffd")
