"""Entries of a list and their values: what tells them apart, and how they are said."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from art_mcp.canonical import canonical
from art_mcp.client.effects import words
from art_mcp.scenarios.observe import Path, at
from art_mcp.scenarios.phrasing.lexicon import PREPOSITIONS
from art_mcp.scenarios.phrasing.questions.question import SHORT

_IDENTIFYING = ("name", "title", "id", "key", "code", "label", "path", "message", "subject", "summary")
"""Last words of keys that tell entries of a list apart, the best first."""


def identifying(entries: Sequence[Any]) -> str | None:
    """The key whose values tell the entries of a list apart, in words that can be said. None: there is none."""
    best: tuple[int, str] | None = None
    for key in entries[0] if entries and isinstance(entries[0], dict) else ():
        values = [entry.get(key) if isinstance(entry, dict) else None for entry in entries]
        rank = next((at for at, word in enumerate(_IDENTIFYING) if words(key)[-1:] == [word]), None)
        told = all(isinstance(value, str) and 1 < len(value) <= SHORT and "\n" not in value for value in values)
        if rank is not None and told and len({str(value).casefold() for value in values}) == len(values):
            best = min(best, (rank, key)) if best else (rank, key)
    return best[1] if best else None


def scalars(entry: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The values of an entry that are neither lists nor objects, nor empty, by their keys."""
    for key, leaf in entry.items():
        if isinstance(leaf, str | int | float) and not isinstance(leaf, bool) and leaf != "":
            yield str(key), leaf


def find_part(value: Any, path: Path) -> Any:
    """The part of a value at a path. None: nothing is there."""
    try:
        return at(value, path)
    except (LookupError, TypeError):
        return None


def name_of(path: Path) -> str:
    """The keys of a path as words. A key that would read as another word is in quotation marks."""
    said = " ".join(" ".join(words(str(key))) or str(key) for key in path)
    return f'"{path[-1]}" value' if said in PREPOSITIONS else said


def text_of(value: Any) -> str:
    """A value as text."""
    return value.strip() if isinstance(value, str) else canonical(value)
