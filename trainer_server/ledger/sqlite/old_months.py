"""Completions of earlier months, on their way out of a SQLite ledger."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterator

from trainer_server.ledger.storage.months import COLUMNS, Row, beginning, month_of
from trainer_server.ledger.storage.slices import delete_in_slices


class OldMonth:
    """See `Month`.

    Args:
        db: A connection without a transaction, of which nobody else uses the temporary tables.
        before: Unix time from which on completions stay.
        keep: Ids of completions that stay.
    """

    def __init__(self, db: sqlite3.Connection, before: float, keep: Collection[str]) -> None:
        self._db = db
        with db:
            db.execute("CREATE TEMP TABLE keep (id TEXT PRIMARY KEY)")
            db.executemany("INSERT OR IGNORE INTO keep VALUES (?)", ((kept,) for kept in keep))
            db.execute("CREATE TEMP TABLE leaving (id TEXT PRIMARY KEY)")
        oldest = "SELECT created FROM completions WHERE created < ? AND id NOT IN keep ORDER BY created LIMIT 1"
        row = db.execute(oldest, (before,)).fetchone()
        self.name = None if row is None else month_of(row[0])
        if self.name is not None:
            with db:
                db.execute(
                    "INSERT INTO leaving SELECT id FROM completions "
                    "WHERE created >= ? AND created < ? AND id NOT IN keep",
                    (beginning(self.name), min(before, beginning(self.name, later=1))),
                )

    def __contains__(self, completion: object) -> bool:
        return self._db.execute("SELECT 1 FROM leaving WHERE id = ?", (completion,)).fetchone() is not None

    def rows(self) -> Iterator[Row]:
        columns = ", ".join(f"completions.{name}" for name in COLUMNS)
        query = f"SELECT {columns} FROM leaving JOIN completions USING (id) ORDER BY completions.rowid"
        return iter(self._db.execute(query))

    def delete(self) -> int:
        with self._db:
            keep_place(self._db)
        return delete_in_slices(self._delete)

    def _delete(self, most: int) -> int:
        with self._db:
            ids = self._db.execute("SELECT id FROM leaving LIMIT ?", (most,)).fetchall()
            self._db.executemany("DELETE FROM completions WHERE id = ?", ids)
            self._db.executemany("DELETE FROM leaving WHERE id = ?", ids)
        return len(ids)


def keep_place(db: sqlite3.Connection) -> None:
    """Notes the place of a ledger's newest row, before it may be deleted. In a transaction."""
    (last,) = db.execute("SELECT max(rowid) FROM completions").fetchone()
    if last is not None:
        db.execute("DELETE FROM places WHERE last < ?", (last,))
        db.execute("INSERT INTO places SELECT ? WHERE NOT EXISTS (SELECT 1 FROM places)", (last,))
