"""A chart: which figures of which table it shows, and how they are drawn."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from art_examples.svg import COLORS, WIDTH, Card

from benchmarks.charts.tables import Figure, table

DOCS = Path(__file__).parents[2] / "docs"
BAR, GAP, LINE = 15, 13, 15
"""Height of a bar, distance between rows, height of a line of a label."""
LABEL = 46
"""Characters in a line of a label."""
Rows = list[tuple[str, list[Figure | None]]]
"""The label of each row, and a figure for each series."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Horizontal bars, or points on a logarithmic scale.

    Args:
        name: Of the file, without `.svg`.
        page: The page, by its path in docs/.
        after: Words of the page. The table is the first one behind them that has the columns.
        labels: Columns whose cells name a row.
        series: Columns that are drawn, and what the legend calls them.
        title: Heading.
        about: Unit and conditions, in a line.
        rows: Only rows whose label has this pattern.
        log: Whether the scale is logarithmic.
        most: End of the scale. None: what the figures need.
    """

    name: str
    page: str
    after: str
    labels: tuple[str, ...]
    series: Mapping[str, str]
    title: str
    about: str
    rows: str = ""
    log: bool = False
    most: float | None = None

    @property
    def path(self) -> Path:
        return DOCS / "images" / "charts" / f"{self.name}.svg"

    def figures(self, text: str) -> Rows:
        """What is drawn. text: the page.

        Raises:
            ValueError: The page has no such table, or the table not these columns or rows.
        """
        found = table(text, self.after, [*self.labels, *self.series])
        rows = [(", ".join(row[name] for name in self.labels), [Figure.of(row[name]) for name in self.series])
                for row in found]  # fmt: skip
        rows = [(label, figures) for label, figures in rows if any(figures) and re.search(self.rows, label)]
        if not rows:
            raise ValueError(f"{self.page}: no row of the table after {self.after!r} has a figure to draw")
        return rows

    def draw(self, text: str) -> str:
        """The SVG. text: the page."""
        rows = self.figures(text)
        described = "; ".join(f"{label}: {', '.join(self._described(figures))}" for label, figures in rows)
        card = Card(self.title, self.about, f"{described}. From docs/{self.page}.")
        top = 66.0
        if len(self.series) > 1:
            self._legend(card, top)
            top += 26
        labels = [textwrap.wrap(label, LABEL) for label, _ in rows]
        left = 32 + 7.2 * max(len(line) for lines in labels for line in lines)
        scale = _Scale.of([figure for _, figures in rows for figure in figures if figure], left, self.log, self.most)
        heights = [max(len(lines) * LINE, len(self.series) * BAR) + GAP for lines in labels]
        bottom = top + sum(heights)
        for tick in scale.ticks():
            card.line([(scale.x(tick), top), (scale.x(tick), bottom)], "grid")
            card.text(scale.x(tick), bottom + 16, _short(tick), color="dim", anchor="middle", size=12)
        for lines, (_, figures), height in zip(labels, rows, heights, strict=True):
            middle = top + height / 2
            for at, line in enumerate(lines):
                card.text(left - 10, middle + 4.5 + (at - (len(lines) - 1) / 2) * LINE, line, anchor="end")
            for at, figure in enumerate(figures):
                if figure is not None:
                    y = middle + (at - (len(figures) - 1) / 2) * BAR
                    _bar(card, scale, figure, y, COLORS[at if len(figures) > 1 else 1])
            top += height
        return card.svg(bottom + 30)

    def _described(self, figures: list[Figure | None]) -> Iterator[str]:
        for name, figure in zip(self.series.values(), figures, strict=True):
            if figure is not None:
                yield f"{name} {figure.text}" + (f" ({figure.interval})" if figure.interval else "")

    def _legend(self, card: Card, y: float) -> None:
        x = 20.0
        for name, color in zip(self.series.values(), COLORS, strict=False):
            card.box(x, y, 12, 12, color)
            card.text(x + 18, y + 11, name)
            x += 42 + 7 * len(name)


@dataclass(frozen=True, slots=True)
class _Scale:
    """Numbers to places: from `low` at `left` to `high` at the right border."""

    low: float
    high: float
    left: float
    log: bool

    @classmethod
    def of(cls, figures: list[Figure], left: float, log: bool, most: float | None) -> _Scale:
        ends = [figure.high for figure in figures]
        if log:
            return cls(
                math.floor(math.log10(min(figure.low for figure in figures))),
                math.ceil(math.log10(max(ends))),
                left,
                log,
            )
        return cls(0.0, most or max(ends), left, log)

    def x(self, value: float) -> float:
        at = math.log10(value) if self.log else value
        return self.left + (at - self.low) / (self.high - self.low) * (WIDTH - 64 - self.left)

    def ticks(self) -> list[float]:
        if self.log:
            return [10.0**at for at in range(int(self.low), int(self.high) + 1)]
        step = 10 ** math.floor(math.log10(self.high / 2))
        step *= next(factor for factor in (1, 2, 2.5, 5, 10) if self.high / (step * factor) <= 5)
        return [at * step for at in range(int(self.high / step) + 1)]


def _bar(card: Card, scale: _Scale, figure: Figure, y: float, color: str) -> None:
    end = scale.x(figure.value)
    if scale.log:
        card.dot(end, y, color)
        end += 4
    else:
        card.box(scale.left, y - BAR / 2 + 1, max(end - scale.left, 1.0), BAR - 2, color)
    if figure.low < figure.high:
        low, end = scale.x(figure.low), max(end, scale.x(figure.high))
        card.line([(low, y), (end, y)], "mark")
        for x in (low, end):
            card.line([(x, y - 3), (x, y + 3)], "mark")
    card.text(end + 5, y + 4, figure.text, size=11)


def _short(number: float) -> str:
    return f"{number:,.0f}" if number >= 1000 else f"{number:g}".replace("e-0", "e-")
