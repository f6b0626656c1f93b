"""Completions of earlier months, on their way out of a ledger in PostgreSQL."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from trainer_server.ledger.postgres.database import Db
from trainer_server.ledger.storage.months import COLUMNS, Row, beginning, month_of
from trainer_server.ledger.storage.slices import delete_in_slices

_AT_ONCE = 1000
"""Rows that are in memory at once."""


class OldMonth:
    """See `Month`.

    Args:
        db: A connection in autocommit mode that nobody else uses. Its temporary table is dropped when it is closed.
        before: Unix time from which on completions stay.
        keep: Ids of completions that stay.
    """

    def __init__(self, db: Db, before: float, keep: Collection[str]) -> None:
        self._db = db
        stay = list(keep)
        leaving = "created < %s AND id NOT IN (SELECT unnest(%s::text[]))"
        db.execute('CREATE TEMP TABLE leaving (id TEXT COLLATE "C" PRIMARY KEY)')
        oldest = f"SELECT created FROM completions WHERE {leaving} ORDER BY created LIMIT 1"
        row = db.execute(oldest, (before, stay)).fetchone()
        self.name = None if row is None else month_of(row[0])
        if self.name is not None:
            query = f"INSERT INTO leaving SELECT id FROM completions WHERE {leaving} AND created >= %s"
            db.execute(query, (min(before, beginning(self.name, later=1)), stay, beginning(self.name)))

    def __contains__(self, completion: object) -> bool:
        return self._db.execute("SELECT 1 FROM leaving WHERE id = %s", (completion,)).fetchone() is not None

    def rows(self) -> Iterator[Row]:
        columns = ", ".join(f"completions.{name}" for name in COLUMNS)
        query = f"SELECT {columns} FROM leaving JOIN completions USING (id) ORDER BY place"
        with self._db.transaction(), self._db.cursor("rows") as cursor:
            cursor.itersize = _AT_ONCE
            cursor.execute(query)
            yield from cursor

    def delete(self) -> int:
        return delete_in_slices(self._delete)

    def _delete(self, most: int) -> int:
        query = (
            "WITH old AS (DELETE FROM leaving WHERE id = ANY(ARRAY(SELECT id FROM leaving LIMIT %s)) RETURNING id), "
            "gone AS (DELETE FROM completions USING old WHERE completions.id = old.id) SELECT count(*) FROM old"
        )
        return int((self._db.execute(query, (most,)).fetchone() or (0,))[0])
