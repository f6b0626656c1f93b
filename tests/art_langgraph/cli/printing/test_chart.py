"""Curves drawn with characters."""

from __future__ import annotations

from art_langgraph.cli.status import format_duration
from art_langgraph.cli.watch import chart


def test_points_stand_where_their_values_are() -> None:
    text = chart({"success": [(0, 0.0), (1, 0.5), (2, 1.0)], "reward": [(0, 0.25), (2, 0.25)]}, width=9, height=5)
    lines = text.plain.splitlines()
    area = [line.split("┤")[1] for line in lines[:5]]
    assert [line.strip() for line in area] == ["●", "", "●", "◆       ◆", "●"]
    assert [line.index("●") for line in area if "●" in line] == [8, 4, 0]
    assert lines[0].startswith("    1.000")
    assert "● success 1.000" in lines[-1]
    assert "version 0" in text.plain


def test_one_point_or_none_can_be_drawn() -> None:
    assert "0.500" in chart({"reward": [(3, 0.5)]}).plain
    assert chart({"reward": []}).plain == "no value yet"


def test_times_are_told_in_two_units() -> None:
    assert [format_duration(seconds) for seconds in (-1, 42, 200, 8000, 273600)] == [
        "0 s",
        "42 s",
        "3 min 20 s",
        "2 h 13 min",
        "3 d 4 h",
    ]
