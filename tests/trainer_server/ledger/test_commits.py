"""Deletions in slices: all rows go, a few at a time, and as many as can be deleted quickly."""

from __future__ import annotations

import time

from trainer_server.ledger.commits import delete_in_slices


def asked_for(count: int, seconds_a_row: float) -> list[int]:
    """How many rows each slice was, of a deletion that takes so long."""
    left, asked = count, list[int]()

    def delete(most: int) -> int:
        nonlocal left
        asked.append(most)
        chosen = min(most, left)
        time.sleep(chosen * seconds_a_row)
        left -= chosen
        return chosen

    assert delete_in_slices(delete) == count
    assert left == 0
    return asked


def test_others_wait_for_few_rows_where_a_row_takes_long() -> None:
    asked = asked_for(100, 0.002)
    assert asked[0] == 50
    assert all(rows == 10 for rows in asked[1:])


def test_many_rows_go_at_once_where_that_is_quick() -> None:
    asked = asked_for(20_000, 0.0)
    assert 50 < max(asked) <= 1000


def test_nothing_to_delete_is_one_look() -> None:
    assert asked_for(0, 0.0) == [50]
