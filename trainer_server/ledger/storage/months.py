"""Completions of earlier months, on their way out of a ledger."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import Protocol, runtime_checkable

Row = tuple[str, float, str | None, int | None, str | None, str, str]
"""A row of the ledger: the values of COLUMNS."""
COLUMNS = ("id", "created", "policy", "version", "rollout", "status", "record")


class Month(Protocol):
    """The oldest month of which a ledger has completions that may leave it."""

    name: str | None
    """Such as `2026-08` (UTC); None: no completion may leave."""

    def __contains__(self, completion: object) -> bool: ...

    def rows(self) -> Iterator[Row]:
        """The rows of the month."""
        ...

    def delete(self) -> int:
        """Deletes the rows, a few at a time; returns how many."""
        ...


@runtime_checkable
class GivesMonths(Protocol):
    """What a ledger may have besides: it gives completions to the archive."""

    def oldest_month(self, before: float, keep: Collection[str] = ()) -> AbstractContextManager[Month]:
        """The oldest month, for the archive. `add` works meanwhile.

        Args:
            before: Unix time from which on completions stay in the ledger.
            keep: Ids of completions that stay.

        Raises:
            LedgerError: The ledger could not be read or changed.
        """
        ...


def month_of(moment: float) -> str:
    """The month of a Unix time, such as `2026-08` (UTC)."""
    return f"{datetime.fromtimestamp(moment, UTC):%Y-%m}"


def beginning(month: str, *, later: int = 0) -> float:
    """When a month begins, as Unix time.

    Args:
        month: Such as `2026-08`.
        later: So many months later; may be negative.
    """
    year, number = divmod(int(month[:4]) * 12 + int(month[5:]) - 1 + later, 12)
    return datetime(year, number + 1, 1, tzinfo=UTC).timestamp()
