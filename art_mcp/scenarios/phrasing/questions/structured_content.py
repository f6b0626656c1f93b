"""Questions about structured content: its leaves, and the entries of its lists."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from art_mcp.canonical import canonical
from art_mcp.client.effects import words
from art_mcp.scenarios.observe import Path, leaves
from art_mcp.scenarios.phrasing.english import one_of, plural
from art_mcp.scenarios.phrasing.lexicon import CONTAINERS
from art_mcp.scenarios.phrasing.questions.entries import find_part, name_of, scalars, text_of
from art_mcp.scenarios.phrasing.questions.finder import COUNTED, Finder
from art_mcp.scenarios.phrasing.questions.question import Asked, Question


class StructuredFinder(Finder):
    """Finds the questions about structured content."""

    def find(self) -> Iterator[Question]:
        """Questions about its leaves and its lists, or about all of a single value."""
        if not isinstance(self._first, dict | list | tuple):
            text = text_of(self._first)
            same = text == text_of(self._second)
            yield Question("value", "", text, path=None if same else ())
            return
        yield from self._leaves()
        for path, entries in _lists(self._first):
            other = find_part(self._second, path)
            if isinstance(other, list | tuple) and len(other) == len(entries):
                yield from self._of_list(path, list(entries))

    def _leaves(self) -> Iterator[Question]:
        """Questions for values by their keys."""
        pairs = [(path, leaf) for path, leaf in leaves(self._first) if not isinstance(leaf, bool)]
        named = [(path, leaf) for path, leaf in pairs if all(isinstance(key, str) for key in path)]
        ends = Counter(name_of(path[-1:]) for path, _ in pairs)
        twos = Counter(name_of(path[-2:]) for path, _ in pairs)
        for path, leaf in named:
            if ends[name_of(path[-1:])] == 1:
                head = f"the {name_of(path[-1:])}"
            elif len(path) > 1 and twos[name_of(path[-2:])] == 1:
                head = f"the {name_of(path[-1:])} of the {name_of(path[-2:-1])}"
            else:
                continue
            other = find_part(self._second, path)
            found_leaf = self._leaf(head, text_of(leaf), canonical(leaf) == canonical(other), path)
            yield replace(found_leaf, attribute=not set(self._noun.split()) & CONTAINERS)

    def _of_list(self, path: Path, entries: Sequence[Any]) -> Iterator[Question]:
        """Questions about a list."""
        if path and isinstance(path[-1], str):
            item = one_of(name_of(path[-1:]))
        else:
            item = one_of(self._noun) if self._many else "entry"
        if entries and all(isinstance(entry, str | int | float) for entry in entries):
            yield from self._of_values([text_of(entry) for entry in entries], item)
            return
        if not entries or not all(isinstance(entry, dict) for entry in entries):
            return
        if 1 < len(entries) <= COUNTED:
            yield Question("count", "", str(len(entries)), items=plural(item))
        ends: tuple[tuple[int, Asked], ...] = ((0, "first"), (len(entries) - 1, "last"))
        for number, place in ends:
            for key, leaf in scalars(entries[number]):
                whole = (*path, number, key)
                same = canonical(leaf) == canonical(find_part(self._second, whole))
                name, asked = name_of((key,)), place
                if len(entries) == 1:
                    head, asked = f"the {name}", "leaf"
                elif item == "entry" and key == next(iter(entries[number])) and words(key)[-1:] != ["name"]:
                    head = f"the {place} {name}"  # the entry is a column, and has no column
                else:
                    head = f"the {name} of the {place} {item}"
                yield self._leaf(head, text_of(leaf), same, whole, asked)
        later = find_part(self._second, path)
        yield from self._by_name(entries, later, item, lambda number, key: (*path, number, key))


def _lists(value: Any, path: Path = ()) -> Iterator[tuple[Path, Sequence[Any]]]:
    """The lists in a value that are reached by keys alone, with their paths."""
    if isinstance(value, list | tuple):
        yield path, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _lists(item, (*path, str(key)))
