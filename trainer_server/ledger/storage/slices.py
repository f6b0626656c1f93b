"""Deletions of many completions that let others write meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable

_HELD = 0.02
"""Seconds that a slice should take: others wait for about as long."""
_FIRST, _FEWEST, _MOST = 50, 10, 1000
"""Rows of the first slice, and bounds of the others."""


def delete_in_slices(delete: Callable[[int], int]) -> int:
    """Deletes rows a few at a time.

    SQLite does not queue writers: one that waits looks again after some milliseconds. So each slice is followed by a
    pause as long as the slice took. That also leaves a database server half of its time for others.

    Args:
        delete: Deletes at most so many rows, in a transaction of its own, and returns how many. Fewer end the deletion.

    Returns:
        How many rows were deleted.
    """
    rows, deleted = _FIRST, 0
    while True:
        started = time.monotonic()
        count = delete(rows)
        spent = time.monotonic() - started
        deleted += count
        if count < rows:
            return deleted
        time.sleep(spent)
        rows = max(_FEWEST, min(_MOST, int(rows * _HELD / max(spent, 1e-6))))
