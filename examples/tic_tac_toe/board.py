"""The rules of tic-tac-toe, and a fixed opponent."""

from __future__ import annotations

import random

EMPTY = "123456789"
"""A board: its nine squares, row by row. A free square shows its number, the others X or O."""
LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))


def show(board: str) -> str:
    """The board as a prompt shows it: three lines."""
    return "\n".join(" ".join(board[at : at + 3]) for at in (0, 3, 6))


def free(board: str) -> list[str]:
    """The numbers of the free squares."""
    return [square for square in board if square.isdigit()]


def place(board: str, square: str, mark: str) -> str:
    """The board after a move. square: the number of a free square."""
    return board.replace(square, mark)


def swapped(board: str) -> str:
    """The board as the other player sees it: X and O are swapped."""
    return board.translate(str.maketrans("XO", "OX"))


def ended(board: str) -> str:
    """How the game ended, for X: "won", "lost", "draw"; or an empty text if it goes on."""
    lines = {"".join(board[at] for at in line) for line in LINES}
    if "XXX" in lines:
        return "won"
    if "OOO" in lines:
        return "lost"
    return "" if free(board) else "draw"


def reply(board: str, seed: str) -> str:
    """The move of the fixed opponent, which plays O: it wins if it can, and else takes a free square by chance.

    Args:
        board: A board with a free square.
        seed: Seeds the choice. The opponent always makes the same move for a seed and a board.
    """
    winning = [square for square in free(board) if ended(place(board, square, "O")) == "lost"]
    return winning[0] if winning else random.Random(f"{seed}/{board}").choice(free(board))
