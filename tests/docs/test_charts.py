"""Charts of the documentation have the figures of the tables of their pages."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from benchmarks.charts.__main__ import CHARTS
from benchmarks.charts.chart import DOCS, Chart
from benchmarks.charts.tables import Figure, table

SVG = "{http://www.w3.org/2000/svg}"
PAGE = "# T\n\nWords.\n\n| a | b |\n|---|---|\n| [x](y.md) `z` | 1,599 |\n\n| a | c |\n|---|---|\n| **w** | 2 |\n"


@pytest.mark.parametrize("chart", CHARTS, ids=lambda chart: chart.name)
def test_a_chart_is_what_the_table_of_its_page_gives(chart: Chart) -> None:
    drawn, page = chart.path.read_text(), (DOCS / chart.page).read_text()
    figures = [figure for _, row in chart.figures(page) for figure in row if figure]
    described = ElementTree.fromstring(drawn).findtext(f"{SVG}desc") or ""
    for figure in figures:
        assert f" {figure.text}" in described, f"{chart.name}: run `python -m benchmarks.charts`"
    assert drawn == chart.draw(page), f"{chart.name}: run `python -m benchmarks.charts`"
    assert re.search(rf"!\[[^]]{{20,}}\]\((\.\./)*images/charts/{chart.name}\.svg\)", page), (
        "the page shows it, described"
    )


def test_every_chart_is_drawn_by_the_program() -> None:
    assert {path.stem for path in (DOCS / "images" / "charts").iterdir()} == {chart.name for chart in CHARTS}
    assert {path.name: size for path in CHARTS[0].path.parent.iterdir() if (size := path.stat().st_size) > 16_384} == {}


@pytest.mark.parametrize(
    ("cell", "text", "low", "value", "high"),
    [
        ("0.342", "0.342", 0.342, 0.342, 0.342),
        ("0.575 (0.486 - 0.660), 8 steps", "0.575", 0.486, 0.575, 0.66),
        ("+1.14 (+1.02 to +1.26)", "+1.14", 1.02, 1.14, 1.26),
        ("0.5 - 1.5", "0.5 - 1.5", 0.5, 1.0, 1.5),
        ("1,599", "1,599", 1599, 1599, 1599),
        ("4.9e-7", "4.9e-7", 4.9e-7, 4.9e-7, 4.9e-7),
        ("2.35 s", "2.35", 2.35, 2.35, 2.35),
        ("−0.039", "−0.039", -0.039, -0.039, -0.039),
    ],
)
def test_the_figure_of_a_cell(cell: str, text: str, low: float, value: float, high: float) -> None:
    figure = Figure.of(cell)
    assert figure is not None
    assert (figure.text, figure.low, figure.value, figure.high) == (text, low, value, high)


def test_a_cell_without_a_figure() -> None:
    assert Figure.of("–") is None
    assert Figure.of("") is None


def test_a_table_is_the_first_one_with_the_columns() -> None:
    assert table(PAGE, "Words", ["b"]) == [{"a": "x z", "b": "1,599"}]
    assert table(PAGE, "# T", ["a", "c"]) == [{"a": "w", "c": "2"}]


@pytest.mark.parametrize(("after", "columns", "said"), [("Word!", ["a"], "does not say"), ("Words", ["d"], "no table")])
def test_a_table_that_is_not_there_is_said(after: str, columns: list[str], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        table(PAGE, after, columns)
