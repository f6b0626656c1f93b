"""What the questions about texts and about structured content have in common."""

from __future__ import annotations

import random
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from email.utils import parseaddr
from typing import Any

from art_mcp.canonical import canonical
from art_mcp.client.effects import words
from art_mcp.scenarios.observe import Path, changes_with_time, is_local
from art_mcp.scenarios.phrasing.english import plural
from art_mcp.scenarios.phrasing.questions.entries import find_part, identifying, name_of, scalars, text_of
from art_mcp.scenarios.phrasing.questions.question import Asked, Question

COUNTED = 12
"""Entries that are asked to be counted, at most."""

NAMED = 4
"""Entries of a result that are asked about by their names, at most."""

_NAME = re.compile(r"[./@-]*\w[\w./@-]*(?: [./@-]*\w[\w./@-]*){0,2}")
"""A value that people would look for in a list."""


class Finder(ABC):
    """Finds the questions about one result.

    Args:
        first: The result of the first execution.
        second: The result of the second execution.
        noun: What the call gives, as a noun.
        many: Whether the noun is a plural.
        stated_texts: What the task says already, in small letters.
        rng: Chooses entries.
    """

    def __init__(
        self, first: Any, second: Any, noun: str, many: bool, stated_texts: set[str], rng: random.Random
    ) -> None:
        self._first = first
        self._second = second
        self._noun = noun
        self._many = many
        self._stated = stated_texts
        self._rng = rng

    @abstractmethod
    def find(self) -> Iterator[Question]:
        """Everything that can be asked."""

    def _of_values(self, values: Sequence[str], item: str, whole: bool = True) -> Iterator[Question]:
        """Questions about a list of texts. whole: they are all that the result has."""
        if whole and 1 < len(values) <= COUNTED and item != "line":
            yield Question("count", "", str(len(values)), items=plural(item))
        ends: tuple[tuple[Asked, str], ...] = (("first", values[0]), ("last", values[-1]))
        for asked, value in ends:
            if len(re.findall(r"\w", value)) > 2:
                yield Question(asked, f"the {asked} {item}", value, items=plural(item))
        short = [value for value in values if _NAME.fullmatch(value) and values.count(value) == 1]
        if len(short) > 2 and whole and item != "line":
            yield Question("contains", "", "yes", items=plural(item), item=self._rng.choice(short))

    def _by_name(
        self, entries: Sequence[dict[str, Any]], later: Any, item: str, where: Callable[[int, str], Path]
    ) -> Iterator[Question]:
        """Questions about entries that their names tell apart: "the price of lamp".

        Args:
            entries: The entries.
            later: Those of the second execution, as many.
            item: Their noun in the singular.
            where: Where the result has a value of an entry, by its number and the value's key.
        """
        key = identifying(entries)
        if key is None or len(entries) < 2:
            return
        for number in self._rng.sample(range(len(entries)), min(len(entries), NAMED)):
            entry = entries[number]
            for other, leaf in scalars(entry):
                whole = where(number, other)
                same = canonical(leaf) == canonical(find_part(later, (number, other)))
                if other != key and name_of((other,)) != item:
                    called = entry[key]
                    if words(key)[-1:] == ["name"]:
                        who = f"the {item} {called}"
                    else:
                        who = f"the {item} with the {name_of((key,))} " + (f'"{called}"' if " " in called else called)
                    yield self._leaf(f"the {name_of((other,))} of {who}", text_of(leaf), same, whole)

    def _leaf(self, head: str, value: str, stable: bool, path: Path, kind: Asked = "leaf") -> Question:
        """A question for a value. stable: both executions gave it."""
        if not stable or changes_with_time(value) or is_local(value):
            return Question(kind, head, value, path=path)
        name, address = parseaddr(value)
        person = name and value.endswith(f"<{address}>")  # who asks for an author wants no address
        return Question(kind, head, name if person else value)
