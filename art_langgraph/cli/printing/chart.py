"""Draws curves with characters: a few series over versions, on common axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.text import Text

Points = Sequence[tuple[float, float]]
"""(x, y), x rising."""
_STYLES = ("green", "magenta", "cyan", "yellow")
_MARKS = "●◆▲■"
_MARGIN = 11
"""Columns of the labels at the left."""


def chart(series: Mapping[str, Points], *, width: int = 60, height: int = 8) -> Text:
    """A chart of up to four series, with a legend that has their last values. Where points meet, the first series is in
    front.

    Args:
        series: Points by the name of the series; those without points are left out.
        width: Columns of the area, without the labels.
        height: Its rows.
    """
    drawn = {name: points for name, points in series.items() if points}
    if not drawn:
        return Text("no value yet", style="dim")
    text = Text()
    cells, labels = _area(list(drawn.values()), width, height)
    for row in range(height):
        text.append(f"{labels.get(row, ''):>{_MARGIN - 2}} ┤", style="dim")
        for column in range(width):
            mark = cells.get((row, column))
            text.append(" " if mark is None else _MARKS[mark], style=None if mark is None else _STYLES[mark])
        text.append("\n")
    text.append(f"{'└':>{_MARGIN}}{'─' * width}\n", style="dim")
    xs = [x for points in drawn.values() for x, _ in points]
    first, last = f"version {min(xs):g}", f"{max(xs):g}" if max(xs) > min(xs) else ""
    text.append(f"{'':{_MARGIN}}{first}{last:>{width - len(first)}}\n{'':{_MARGIN}}", style="dim")
    for number, (name, points) in enumerate(drawn.items()):
        text.append(f"{_MARKS[number]} {name} {points[-1][1]:.3f}   ", style=_STYLES[number])
    return text


def _area(series: list[Points], width: int, height: int) -> tuple[dict[tuple[int, int], int], dict[int, str]]:
    """The number of the series at each (row, column), and the labels of rows."""
    xs = [x for points in series for x, _ in points]
    ys = [y for points in series for _, y in points]
    low, high, first, last = min(ys), max(ys), min(xs), max(xs)
    cells: dict[tuple[int, int], int] = {}
    for number, points in reversed(list(enumerate(series))):
        for x, y in points:
            column = round((x - first) / (last - first) * (width - 1)) if last > first else 0
            row = round((high - y) / (high - low) * (height - 1)) if high > low else height // 2
            cells[row, column] = number
    if high > low:
        return cells, {0: f"{high:.3f}", height - 1: f"{low:.3f}"}
    return cells, {height // 2: f"{high:.3f}"}
