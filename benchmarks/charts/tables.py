"""Tables of the documentation, and the figures in their cells."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

_NUMBER = r"[-+−]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?"
_FIGURE = re.compile(rf"^\W*?({_NUMBER})(?:[^()\d]*\(({_NUMBER}) (?:-|to) ({_NUMBER})\)| - ({_NUMBER}))?")
Row = dict[str, str]
"""Cells by the heading of their column."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of a cell.

    Args:
        text: As the page writes it.
        interval: As the page writes it: "0.486 - 0.660". Empty: the cell has none.
        value: The number; of a range the middle.
        low: Lower end of the interval.
        high: Upper end of it.
    """

    text: str
    interval: str
    value: float
    low: float
    high: float

    @classmethod
    def of(cls, cell: str) -> Figure | None:
        """The first figure of a cell, such as `0.575 (0.486 - 0.660), 8 steps`. None: the cell has none."""
        match = _FIGURE.match(cell)
        if match is None:
            return None
        first, low, high, end = match.groups()
        value = _number(first)
        if end is not None:  # a range
            return cls(f"{first} - {end}", "", (value + _number(end)) / 2, value, _number(end))
        if low is None:
            return cls(first, "", value, value, value)
        return cls(first, f"{low} - {high}", value, _number(low), _number(high))


def table(text: str, after: str, columns: Collection[str]) -> list[Row]:
    """The rows of a table.

    Args:
        text: The page.
        after: Words of the page.
        columns: The table is the first one behind these words that has these columns.

    Raises:
        ValueError: The page has not these words, or no such table behind them.
    """
    _, found, rest = text.partition(after)
    if not found:
        raise ValueError(f"the page does not say {after!r}: name words of the page that precede the table")
    for match in re.finditer(r"(?:^\|.*\n){3,}", rest, re.M):
        heads, _, *rows = map(_cells, match[0].splitlines())
        if set(columns) <= set(heads):
            return [dict(zip(heads, row, strict=True)) for row in rows]
    raise ValueError(f"no table behind {after!r} has the columns {', '.join(columns)}")


def _cells(line: str) -> list[str]:
    """Cells of a line, without marks of Markdown: links, code, bold."""
    line = re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", line).replace("\\|", "\0")
    return [re.sub(r"`|\*\*", "", cell).replace("\0", "|").strip() for cell in line.strip().strip("|").split("|")]


def _number(text: str) -> float:
    return float(text.replace(",", "").replace("−", "-"))
