"""What a run edited in a text: the lines that it removed and made. Comparison of the edits of two runs."""

from __future__ import annotations

import re
from calendar import day_abbr, day_name, month_abbr, month_name
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise, takewhile

from pydantic import BaseModel, ConfigDict

VARYING = "\ufffc"
"""Stands for a word that is another one in each run."""

NAMED_TIME = {name.casefold() for names in (day_name, day_abbr, month_name, month_abbr) for name in names} | {
    "am",
    "pm",
}
"""Words of dates and times that are others on other days."""

MAX_OBJECTS = 200
"""Lines that are compared in any order, at most."""

_UNIT = re.compile(r"[\w-]+(?:[:.+/][\w-]+)*")
"""A word, number, id or time of a line."""

_DATE = re.compile(r"\d+[-/.]\d+[-/.]\d+")

_WORD = re.compile(r"[^\W\d_]{3}")


class Edit(BaseModel):
    """The lines of a text between the first and the last that a run changed.

    Args:
        at: Number of the lines before them, which stay. None: each line is a JSON object, wherever it stands, and none
            of these stays.
        old: The lines before the run.
        new: The lines after it. VARYING stands in a reference for what can be another.
    """

    model_config = ConfigDict(extra="forbid")

    at: int | None
    old: tuple[str, ...]
    new: tuple[str, ...]

    @classmethod
    def between(cls, before: str, after: str) -> Edit:
        """What makes one text of another."""
        old, new = before.splitlines(), after.splitlines()
        if all(line.startswith("{") and line.endswith("}") for line in new):
            was, now = Counter(old), Counter(new)
            removals, additions = tuple((was - now).elements()), tuple((now - was).elements())
            if len(additions) <= MAX_OBJECTS:
                return cls(at=None, old=removals, new=additions)
        at = _count_same(old, new)
        old, new = old[at:], new[at:]
        end = _count_same(old[::-1], new[::-1])
        return cls(at=at, old=tuple(old[: len(old) - end]), new=tuple(new[: len(new) - end]))

    @property
    def size(self) -> int:
        """Characters."""
        return sum(map(len, (*self.old, *self.new)))

    @property
    def is_known(self) -> bool:
        """Whether something can be expected beside what varies: the lines have words, and others than before."""
        return any(map(_WORD.search, self.new)) and not self._makes(self.old)

    def merge(self, other: Edit) -> Edit | None:
        """The edit of two executions of the same calls. None: they differ in more than words of lines."""
        if self.at != other.at or Counter(self.old) != Counter(other.old) or len(self.new) != len(other.new):
            return None
        rest, merged = list(other.new), []
        for line in self.new:
            candidates = rest if self.at is None else rest[:1]
            patterns = [(_merge_lines(line, each), number) for number, each in enumerate(candidates)]
            usable = [(each.count(VARYING), number, each) for each, number in patterns if each is not None]
            if not usable:
                return None
            _, number, pattern = min(usable)
            del rest[number]
            merged.append(pattern)
        return Edit(at=self.at, old=self.old, new=tuple(merged))

    def covers(self, other: Edit) -> bool:
        """Whether the edit of a run is as this one of a reference."""
        return self.at == other.at and Counter(self.old) == Counter(other.old) and self._makes(other.new)

    def _makes(self, lines: Sequence[str]) -> bool:
        """Whether lines are as the new ones."""
        rest = list(lines)
        for line in sorted(self.new, key=lambda line: line.count(VARYING)) if self.at is None else self.new:
            pattern = re.compile(_UNIT.pattern.join(map(re.escape, line.split(VARYING))))
            candidates = rest if self.at is None else rest[:1]
            number = next((number for number, each in enumerate(candidates) if pattern.fullmatch(each)), None)
            if number is None:
                return False
            del rest[number]
        return not rest


def _count_same(first: Sequence[str], second: Sequence[str]) -> int:
    """The number of lines with which both begin."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))


def _merge_lines(first: str, second: str) -> str | None:
    """A line with VARYING for the words in which two differ, and for those of the date beside a time. None: they differ
    in more."""
    if first == second:
        return first
    gaps, units, others = _UNIT.split(first), _UNIT.findall(first), _UNIT.findall(second)
    if gaps != _UNIT.split(second):
        return None
    varying = {number for number, unit in enumerate(units) if unit != others[number]}
    dates = [bool(_DATE.match(unit)) or unit.casefold() in NAMED_TIME for unit in units]
    if any(unit.casefold() in NAMED_TIME for unit in units):
        dates = [date or unit.isdigit() for date, unit in zip(dates, units, strict=True)]
    beside = [(left, right) for left, right in pairwise(range(len(units))) if gaps[right] in (" ", ", ")]
    for pairs in (beside, [pair[::-1] for pair in reversed(beside)]):
        varying.update(to for at, to in pairs if at in varying and dates[to])
    parts = (VARYING if number in varying else unit for number, unit in enumerate([*units, ""]))
    return "".join(gap + part for gap, part in zip(gaps, parts, strict=True))
