"""Values of arguments as people write them, so that the call's value can be read from the text exactly."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from art_mcp.canonical import canonical
from art_mcp.scenarios.observe import leaves
from art_mcp.scenarios.phrasing.english import join_items

_QUOTES = ('"{}"', '"{}"', "'{}'", "“{}”")


def render_value(value: Any, rng: random.Random, quote: bool = False) -> str:
    """A value in a sentence. Texts of several words, and odd ones, are in quotation marks.

    Args:
        value: The value. A list is told as a list of its items.
        rng: Chooses the quotation marks.
        quote: Whether also a single word is in quotation marks.
    """
    if isinstance(value, list) and value and not any(isinstance(item, dict | list) for item in value):
        return join_items([render_value(item, rng, quote) for item in value])
    if not isinstance(value, str):
        return canonical(value)
    plain = bool(value) and value == value.strip() and not set(value) & set("\"'\n`“”,;")
    if plain and len(value.split()) == 1 and not quote:
        return value
    if plain and not quote and len(value.split()) <= 3 and all(word[:1].isupper() for word in value.split()):
        return value  # a proper name
    if '"' in value or "\n" in value:
        return f"'{value}'" if "'" not in value and "\n" not in value else canonical(value)
    return rng.choice(_QUOTES if "'" not in value else _QUOTES[:1]).format(value)


def spell_value(value: Any) -> Iterator[str]:
    """The texts that must be in a task so that a value can be read from it. Truth values are told otherwise.

    Args:
        value: The value of an argument.
    """
    for _, leaf in leaves(value):
        if not isinstance(leaf, bool):
            yield leaf if isinstance(leaf, str) else canonical(leaf)
