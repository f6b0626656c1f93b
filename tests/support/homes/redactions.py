"""Functions that redact texts, as users write them: `--redact tests.support.homes.redactions:digits`."""

from __future__ import annotations

import re


def digits(text: str) -> str:
    """Takes digits out."""
    return re.sub(r"\d", "#", text)


def failing(text: str) -> str:
    """Fails, and has the text in its message."""
    raise ValueError(text)


def nothing(text: str) -> None:
    """Returns no text."""
