"""The ledger in a PostgreSQL database. Several servers may write it; trainer processes read."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg

from trainer_server.common.jsonl import from_json, to_json
from trainer_server.ledger.base import (
    COLUMNS,
    RETENTION_DAYS,
    CompletionSummary,
    LedgerError,
    LedgerRow,
    Row,
    beginning,
    month_of,
)
from trainer_server.ledger.commits import GroupCommit, Record, delete_in_slices
from trainer_server.ledger.postgres.database import Database, Db, is_away, reason
from trainer_server.wire import Completion
from trainer_server.wire.text import storable, writable

_FIRST = """
CREATE TABLE completions (
    place BIGINT NOT NULL UNIQUE,
    id TEXT COLLATE "C" PRIMARY KEY,
    created DOUBLE PRECISION NOT NULL,
    policy TEXT COLLATE "C",
    version INTEGER,
    rollout TEXT COLLATE "C",
    status TEXT NOT NULL,
    tokens INTEGER NOT NULL,
    text TEXT NOT NULL,
    record TEXT NOT NULL
);
CREATE INDEX completions_created ON completions (created);
CREATE INDEX completions_rollout ON completions (rollout, created, place) WHERE rollout IS NOT NULL;
CREATE INDEX completions_policy ON completions (policy) WHERE policy IS NOT NULL;
ALTER TABLE completions ALTER COLUMN record SET STATISTICS 0, ALTER COLUMN text SET STATISTICS 0;
CREATE TABLE places (last BIGINT NOT NULL);
INSERT INTO places VALUES (0);
"""
"""Without statistics, the planner's catalogue has no texts of completions, which `erase` could not delete."""
_INSERT = """
WITH taken AS (UPDATE places SET last = last + %(count)s RETURNING last - %(count)s AS before)
INSERT INTO completions (place, id, created, policy, version, rollout, status, tokens, text, record)
SELECT before + nth, id, created, policy, version, rollout, status, tokens, text, record FROM taken, unnest(
    %(id)s::text[], %(created)s::float8[], %(policy)s::text[], %(version)s::integer[], %(rollout)s::text[],
    %(status)s::text[], %(tokens)s::integer[], %(text)s::text[], %(record)s::text[]
) WITH ORDINALITY AS new (id, created, policy, version, rollout, status, tokens, text, record, nth)
ON CONFLICT (id) DO UPDATE SET
    place = excluded.place, created = excluded.created, policy = excluded.policy, version = excluded.version,
    rollout = excluded.rollout, status = excluded.status, tokens = excluded.tokens, text = excluded.text,
    record = excluded.record
WHERE completions.record <> excluded.record
"""
"""One statement is one transaction, which no client can leave open. Writers take places one after another, because each
holds the row of `places` until its rows can be seen: who reads in the order of places (`recorded`) misses none. A
completion that is written again as it is keeps its place."""
_OVERHEAD = 300
"""Bytes of a row besides its record: columns, index entries."""
_PATIENCE = 15.0
"""Seconds for which a write is tried again while the database is not there, as when it restarts."""
_PAUSE = 0.2
"""Seconds between tries."""
_TEXT = 300
"""Characters of a request that a summary has."""
_AT_ONCE = 1000
"""Rows of a month that are in memory at once."""


class PostgresLedger:
    """A ledger in a PostgreSQL database; see `Ledger` for its methods.

    Args:
        url: `postgresql://…`, as libpq reads it.

    Raises:
        ConfigError, LedgerError, NewerSchema: The database cannot be used; `Database` says why.
    """

    def __init__(self, url: str) -> None:
        self._database = Database(url, "ledger", [_FIRST])
        self._commits = GroupCommit(self._write, self._drop_writer)
        self._writer: Db | None = None

    async def add(self, *completions: Completion) -> None:
        await self._commits.add(completions)

    def row_of(self, completion: Completion) -> LedgerRow:
        return LedgerRow(completion.id, columns_of(completion))

    async def add_rows(self, rows: Sequence[LedgerRow]) -> None:
        await self._commits.add(rows)

    def read(self, ids: Sequence[str]) -> dict[str, Completion]:
        rows = self._rows("SELECT id, record FROM completions WHERE id = ANY(%s)", _texts(ids))
        return {completion_id: from_json(Completion, record) for completion_id, record in rows}

    def rollout(self, rollout_id: str) -> list[Completion]:
        query = "SELECT record FROM completions WHERE rollout = %s ORDER BY created, place"
        return [from_json(Completion, record) for (record,) in self._rows(query, _text(rollout_id))]

    def sampled_versions(self, ids: Sequence[str]) -> set[tuple[str, int]]:
        query = "SELECT DISTINCT policy, version FROM completions WHERE policy IS NOT NULL AND id = ANY(%s)"
        return {(policy, version) for policy, version in self._rows(query, _texts(ids))}

    def recorded(self, after: int, limit: int) -> list[CompletionSummary]:
        query = (
            "SELECT place, created, policy, version, rollout, status, tokens, text FROM completions "
            "WHERE place > %s ORDER BY place LIMIT %s"
        )
        return [CompletionSummary(*row) for row in self._rows(query, after, limit)]

    def newest(self) -> float | None:
        ((created,),) = self._rows("SELECT max(created) FROM completions")
        return None if created is None else float(created)

    def purge(self, *, keep: Iterable[str] = (), days: float = RETENTION_DAYS, most_bytes: int | None = None) -> int:
        keep_ids = _texts(keep)
        before = time.time() - days * 86400
        with self._database.connection("purged") as db:
            count = delete_in_slices(lambda rows: len(_delete_oldest(db, keep_ids, before, rows)))
            if most_bytes is not None:
                size = f"SELECT coalesce(sum(pg_column_size(record) + {_OVERHEAD}), 0) FROM completions"
                excess = int((db.execute(size).fetchone() or (0,))[0]) - most_bytes

                def delete(rows: int) -> int:
                    nonlocal excess
                    sizes = _delete_oldest(db, keep_ids, float("inf"), rows, "place") if excess > 0 else []
                    excess -= sum(sizes)
                    return len(sizes)

                count += delete_in_slices(delete)
            return count

    @contextmanager
    def oldest_month(self, before: float, keep: Collection[str] = ()) -> Iterator[OldMonth]:
        with self._database.errors("archived"), self._database.connect() as db:
            db.execute("SET idle_in_transaction_session_timeout TO 0")  # rows are written to a file meanwhile
            yield OldMonth(db, before, _texts(keep))

    def matching(
        self, *, rollouts: Sequence[str] = (), completions: Sequence[str] = (), policy: str | None = None
    ) -> dict[str, str | None]:
        query = (
            "SELECT id, rollout FROM completions WHERE rollout = ANY(%s) OR id = ANY(%s) OR policy = %s "
            "ORDER BY created, place"
        )
        policy_name = None if policy is None else _text(policy)
        return dict[str, str | None](self._rows(query, _texts(rollouts), _texts(completions), policy_name))

    def erase(self, completions: Sequence[str]) -> bool:
        with self._database.connection("changed; ask again") as db:
            db.execute("DELETE FROM completions WHERE id = ANY(%s)", (_texts(completions),))
        self._database.overwrite("completions")
        return True

    def close(self) -> None:
        self._commits.close()
        self._database.close()

    def _rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        with self._database.connection() as db:
            return db.execute(query, values).fetchall()

    def _write(self, completions: Sequence[Record]) -> None:
        records = {record.id: record for record in completions}.values()
        rows = [row.columns if isinstance(row, LedgerRow) else columns_of(row) for row in records]
        values = {name: [row[name] for row in rows] for name in rows[0]}
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                if self._writer is None:
                    self._writer = self._database.connect()
                    self._writer.execute("SET lock_timeout TO 0")  # `erase` may take longer
                self._writer.execute(_INSERT, {**values, "count": len(rows)})
                return
            except psycopg.DataError:  # one of the rows is at fault
                raise
            except psycopg.Error as error:
                self._drop_writer()
                if not is_away(error) or time.monotonic() > deadline:
                    raise LedgerError(f"{self._database.label} cannot be written: {reason(error)}") from error
            time.sleep(_PAUSE)

    def _drop_writer(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


class OldMonth:
    """The oldest month of a ledger in PostgreSQL: `Month`.

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


def _delete_oldest(db: Db, keep: Sequence[str], before: float, most: int, by: str = "created") -> list[int]:
    """Deletes completions, the oldest first, in a transaction; returns their sizes in bytes. Leaves out those that
    another server is deleting.

    Args:
        db: A connection without a transaction.
        keep: Ids of completions that stay.
        before: Unix time from which on completions stay.
        most: How many at most.
        by: What says which are the oldest. The order of rows does not depend on a clock that was set back.
    """
    query = (
        "DELETE FROM completions WHERE id = ANY(ARRAY(SELECT id FROM completions WHERE created < %s "
        f"AND id NOT IN (SELECT unnest(%s::text[])) ORDER BY {by} LIMIT %s FOR UPDATE SKIP LOCKED)) "
        f"RETURNING pg_column_size(record) + {_OVERHEAD}"
    )
    return [int(size) for (size,) in db.execute(query, (before, keep, most))]


def columns_of(completion: Completion) -> dict[str, Any]:
    """What the table has of a completion, but for its place."""
    return {
        "id": _text(completion.id),
        "created": completion.created,
        "policy": None if completion.policy is None else _text(completion.policy),
        "version": completion.version,
        "rollout": None if completion.rollout is None else _text(completion.rollout),
        "status": completion.status.value,
        "tokens": len(completion.token_ids),
        "text": _text(_request_text(completion))[:_TEXT],
        "record": storable(to_json(completion)),
    }


def _request_text(completion: Completion) -> str:
    """The content of the last message of the request."""
    messages = completion.request.get("messages")
    last = messages[-1] if isinstance(messages, list) and messages else None
    content = last.get("content") if isinstance(last, dict) else None
    return content if isinstance(content, str) else "" if content is None else to_json(content)


def _text(text: str) -> str:
    return storable(writable(text))


def _texts(texts: Iterable[str]) -> list[str]:
    return [_text(text) for text in texts]
