"""Questions about a text: its keys, its entries, its lines, the values that it gives to names."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from art_mcp.client.effects import words
from art_mcp.scenarios.lines import Line, lines
from art_mcp.scenarios.observe import changes_with_time, tokens
from art_mcp.scenarios.phrasing.english import one_of, plural
from art_mcp.scenarios.phrasing.lexicon import READABLE
from art_mcp.scenarios.phrasing.questions.finder import COUNTED, NAMED, Finder
from art_mcp.scenarios.phrasing.questions.question import SHORT, Question

_INLINE = re.compile(r"\b([A-Z][a-z]+(?: [a-z]+)?): (\w[\w.]*\w|\w)(?=[,.;]? |[,.;]?$)")
"""Keys and values in a sentence: Steps: 5."""

_ASSIGNED = re.compile(r"\+?\s*(?:export\s+)?([A-Za-z_][\w.-]{0,40})\s*=\s*([^\s=].*?)\s*")
"""A line that gives a name a value, as in settings and programs. One that a diff removes is none."""

_NUMBERED = re.compile(r"[0-9a-f]{6,64}|#?\d+")
"""A number or a hash, by which entries are known but not called."""

_DESCRIBED = re.compile(r"\[[^\[\]]*\]")
"""What stands for a picture or a link."""


class TextFinder(Finder):
    """Finds the questions about a text."""

    def find(self) -> Iterator[Question]:
        """Questions about its keys, its lines, or all of a short one."""
        text = self._first
        listed = [line for line in lines(text) if not _DESCRIBED.fullmatch(line.value)]
        stable = text == self._second
        if len(listed) == 1:
            yield from self._of_line(listed[0], stable)
            return
        keys = Counter(line.key for line in listed if line.key and not line.tagged)
        later = lines(self._second) if isinstance(self._second, str) else []
        for key, count in keys.items():
            values = [line.value for line in listed if line.key == key]
            again = [line.value for line in later if line.key == key]
            name = " ".join(words(key)) or key
            if name.endswith("ed") or name.startswith(("is ", "has ")):
                name = f'"{key}" entry'
            if count == 1:
                yield self._leaf(f"the {name}", values[0], again[:1] == values[:1], (key, 0))
            elif len(again) == count:
                yield self._leaf(f"the first {name}", values[0], again[0] == values[0], (key, 0), "first")
                yield self._leaf(f"the last {name}", values[-1], again[-1] == values[-1], (key, count - 1), "last")
        records, others = _records(listed), _records(later)
        if len(records) == len(others):
            yield from self._by_name(records, others, self._entry_noun(records), lambda number, key: (key, number))
        if stable:
            yield from self._of_assignments(listed)
            bare = [line for line in listed if (not line.key or line.tagged) and not line.value.endswith(":")]
            yield from self._of_lines(bare, all_of_them=not keys)

    def _of_line(self, line: Line, stable: bool) -> Iterator[Question]:
        """Questions about a text of one line."""
        bare, key = line.value, line.key
        whole = f"{key}: {bare}" if key else bare
        if not stable:
            if isinstance(self._second, str) and changes_with_time(bare):
                yield Question("value", "", bare, path=())
            return
        if key and bare.casefold() not in self._stated:
            known = {*self._noun.split(), *self._stated}
            if key.casefold() in known:  # "Debug: …" for a message of the type debug
                yield Question("value", "", bare)
            else:
                yield self._leaf(f"the {' '.join(words(key)) or key}", bare, stable, (key, 0))
            return
        pairs = _INLINE.findall(bare)
        for name, value in pairs:
            yield self._leaf(f"the {name.casefold()}", value, not changes_with_time(value), ())
        stated = any(stated and stated in whole.casefold() for stated in self._stated)
        new = [token for token in tokens(bare) if token.casefold() not in self._stated and len(token) <= SHORT]
        if len(new) == 1 and stated and not changes_with_time(new[0]):
            yield Question("value", "", new[0])
        elif len(whole) <= SHORT and not changes_with_time(whole):
            yield Question("value", "", whole)
        elif len(new) == 1 and not pairs and not changes_with_time(new[0]):
            yield Question("value", "", new[0])

    def _of_lines(self, text_lines: Sequence[Line], all_of_them: bool) -> Iterator[Question]:
        """Questions about the lines of a list, or of any text."""
        if len(text_lines) < 2:
            if text_lines and all_of_them and len(text_lines[0].value) <= SHORT:
                yield Question("value", "", text_lines[0].value)
            return
        tags = Counter(line.key for line in text_lines if line.tagged)
        if self._many:
            item = one_of(self._noun)
        else:
            readable = set(self._noun.split()) & READABLE and not tags
            names = tags or all(len(line.value.split()) == 1 for line in text_lines)
            item = "entry" if names and not readable else "line"
        values = [line.value for line in text_lines]
        yield from self._of_values(values, item, whole=all_of_them)
        for tag, count in tags.items():
            name = {"dir": "directory"}.get(tag.casefold(), tag.casefold())
            inside = [line.value for line in text_lines if line.key == tag]
            if len(tags) > 1 and count <= COUNTED:
                yield Question("count", "", str(count), items=plural(name))
            yield self._leaf(f"the first {name}", inside[0], True, (), "first")
            yield self._leaf(f"the last {name}", inside[-1], True, (), "last")

    def _of_assignments(self, text_lines: Sequence[Line]) -> Iterator[Question]:
        """Questions for values that lines give to names."""
        pairs = [match.groups() for line in text_lines if not line.key and (match := _ASSIGNED.fullmatch(line.value))]
        times = Counter(name for name, _ in pairs)
        single = [(name, value.rstrip(";").strip("'\"`")) for name, value in pairs if times[name] == 1]
        for name, value in self._rng.sample(single, min(len(single), NAMED)):
            yield self._leaf(f"the value of {name}", value, True, ())

    def _entry_noun(self, records: Sequence[dict[str, str]]) -> str:
        """The noun of an entry of a text: the key that it begins with, if that has its number, as in `Commit: 4b38`."""
        first = next(iter(records[0])) if records else ""
        numbered = first and all(_NUMBERED.fullmatch(record[first]) for record in records)
        return " ".join(words(first)) if numbered and words(first)[-1:] != ["id"] else "entry"


def _records(text_lines: Sequence[Line]) -> list[dict[str, str]]:
    """The entries of a text in which the same keys come again and again, in the same order. Empty: it has none."""
    keyed = [line for line in text_lines if line.key and not line.tagged]
    keys = list(dict.fromkeys(line.key for line in keyed))
    size = len(keys)
    regular = size > 1 and len(keyed) % size == 0 and len(keyed) > size
    if not regular or any(line.key != keys[at % size] for at, line in enumerate(keyed)):
        return []
    return [{line.key: line.value for line in keyed[at : at + size]} for at in range(0, len(keyed), size)]
