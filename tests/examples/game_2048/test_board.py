"""The rules of 2048."""

from __future__ import annotations

import random

import pytest
from art_examples.game_2048.board import MOVES, Rows, first, possible, show, slide, with_new_tile
from hypothesis import given
from hypothesis import strategies as st

ROWS = st.lists(st.lists(st.sampled_from([0, 2, 4, 8]), min_size=3, max_size=3).map(tuple), min_size=3, max_size=3)


@pytest.mark.parametrize(
    ("row", "move", "slid", "points"),
    [
        ((2, 2, 0), "left", (4, 0, 0), 4),
        ((2, 2, 2), "left", (4, 2, 0), 4),
        ((2, 2, 2), "right", (0, 2, 4), 4),
        ((2, 2, 4), "left", (4, 4, 0), 4),  # a tile that was made merges no more in this move
        ((0, 2, 0), "left", (2, 0, 0), 0),
        ((2, 4, 8), "right", (2, 4, 8), 0),
    ],
)
def test_tiles_slide_and_merge_once(row: tuple[int, ...], move: str, slid: tuple[int, ...], points: int) -> None:
    rows: Rows = (row, (0, 0, 0), (0, 0, 0))
    made, gained = slide(rows, move)
    assert (made[0], gained) == (slid, points)
    column = tuple((tile, 0, 0) for tile in row)
    turned, _ = slide(column, {"left": "up", "right": "down"}[move])
    assert tuple(line[0] for line in turned) == slid


@given(ROWS.map(tuple))
def test_a_move_keeps_the_sum_of_the_tiles(rows: Rows) -> None:
    for move in MOVES:
        assert sum(map(sum, slide(rows, move)[0])) == sum(map(sum, rows))


def test_moves_that_change_nothing_are_not_possible() -> None:
    rows: Rows = ((2, 0, 0), (4, 0, 0), (2, 0, 0))
    assert possible(rows) == ["right"]
    assert possible(((2, 4, 2), (4, 2, 4), (2, 4, 2))) == []
    assert show(rows) == "2 . .\n4 . .\n2 . .\nright"


def test_a_game_begins_with_two_tiles_and_each_move_brings_one() -> None:
    rows = first("a")
    assert sum(tile > 0 for row in rows for tile in row) == 2
    assert first("a") == rows
    assert len({first(str(seed)) for seed in range(20)}) > 10
    more = with_new_tile(rows, random.Random(0))
    assert sum(map(sum, more)) - sum(map(sum, rows)) in (2, 4)
