"""The rules of tic-tac-toe."""

from __future__ import annotations

import pytest
from art_examples.tic_tac_toe.board import EMPTY, ended, free, place, reply, show, swapped


@pytest.mark.parametrize(
    ("board", "how"),
    [
        (EMPTY, ""),
        ("XXX4OO789", "won"),
        ("OX3OX6O8X", "lost"),
        ("X2OX5OX8O", "won"),  # a board that no game reaches: X is looked at first
        ("XO3OX678X", "won"),
        ("XOXXOOOXX", "draw"),
        ("XOXXOOOX9", ""),
    ],
)
def test_how_a_game_ended(board: str, how: str) -> None:
    assert ended(board) == how


def test_a_move_takes_a_free_square() -> None:
    board = place(EMPTY, "5", "X")
    assert show(board) == "1 2 3\n4 X 6\n7 8 9"
    assert free(board) == list("12346789")
    assert swapped(place(board, "1", "O")) == "X234O6789"


def test_the_opponent_wins_where_it_can_and_else_moves_by_its_seed() -> None:
    assert {reply("OO3XX6789", str(seed)) for seed in range(20)} == {"3"}
    moves = [reply("XX3456O89", str(seed)) for seed in range(60)]
    assert set(moves) == set("345689")
    assert moves == [reply("XX3456O89", str(seed)) for seed in range(60)]
