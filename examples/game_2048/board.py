"""The rules of 2048 on a small board."""

from __future__ import annotations

import random

SIZE = 3
MOVES = ("left", "right", "up", "down")

Rows = tuple[tuple[int, ...], ...]
"""The tiles of a board, row by row. 0: an empty place."""


def slide(rows: Rows, move: str) -> tuple[Rows, int]:
    """The board after a move, before a new tile comes, and the points: the sum of the tiles that were made by merging.

    Args:
        rows: The board.
        move: One of MOVES. Two equal tiles that meet become one, once in a move.
    """
    turned = tuple(zip(*rows, strict=True)) if move in ("up", "down") else rows
    step = -1 if move in ("right", "down") else 1
    slid = [_merged(row[::step]) for row in turned]
    made = tuple(row[::step] for row, _ in slid)
    back = tuple(zip(*made, strict=True)) if move in ("up", "down") else made
    return back, sum(points for _, points in slid)


def _merged(row: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
    """A row that slid to the left, and its points."""
    tiles, points, left = list[int](), 0, [tile for tile in row if tile]
    while left:
        tile = left.pop(0)
        if left and left[0] == tile:
            tile += left.pop(0)
            points += tile
        tiles.append(tile)
    return (*tiles, *[0] * (len(row) - len(tiles))), points


def possible(rows: Rows) -> list[str]:
    """The moves that change a board."""
    return [move for move in MOVES if slide(rows, move)[0] != rows]


def with_new_tile(rows: Rows, rng: random.Random) -> Rows:
    """The board with a 2 or, in one of ten cases, a 4 on an empty place."""
    place = rng.choice([(at, to) for at, row in enumerate(rows) for to, tile in enumerate(row) if not tile])
    tile = 4 if rng.random() < 0.1 else 2
    return tuple(tuple(tile if (at, to) == place else old for to, old in enumerate(row)) for at, row in enumerate(rows))


def first(seed: str) -> Rows:
    """A board with two tiles."""
    rng = random.Random(seed)
    return with_new_tile(with_new_tile(((0,) * SIZE,) * SIZE, rng), rng)


def show(rows: Rows) -> str:
    """The board and the moves that change it, as a prompt shows them."""
    lines = [" ".join(str(tile or ".") for tile in row) for row in rows]
    return "\n".join([*lines, " ".join(possible(rows))])
