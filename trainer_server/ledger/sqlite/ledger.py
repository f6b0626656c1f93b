"""The ledger in one SQLite file, in WAL mode. The server is the only writer; the trainer process reads."""

from __future__ import annotations

import math
import sqlite3
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from trainer_server.common.home import create_private, overwrite_deleted
from trainer_server.common.jsonl import from_json, to_json
from trainer_server.common.schemas import DatabaseSchema, script
from trainer_server.ledger.base import RETENTION_DAYS, CompletionSummary, LedgerError
from trainer_server.ledger.sqlite.old_months import OldMonth, keep_place
from trainer_server.ledger.storage.group_commit import GroupCommit
from trainer_server.ledger.storage.slices import delete_in_slices
from trainer_server.wire import Completion
from trainer_server.wire.text import writable

_FIRST = """
CREATE TABLE IF NOT EXISTS completions (
    id TEXT PRIMARY KEY,
    created REAL NOT NULL,
    policy TEXT,
    version INTEGER,
    rollout TEXT,
    status TEXT NOT NULL,
    record TEXT NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS places (last INTEGER NOT NULL) STRICT;
CREATE INDEX IF NOT EXISTS completions_created ON completions (created);
CREATE INDEX IF NOT EXISTS completions_rollout ON completions (rollout, created) WHERE rollout IS NOT NULL;
"""
_BY_POLICY = "CREATE INDEX IF NOT EXISTS completions_policy ON completions (policy) WHERE policy IS NOT NULL;"
"""For the deletion of a policy, which would read the whole file."""
SCHEMA = DatabaseSchema(script(_FIRST), script(_BY_POLICY))
_INSERT = """
INSERT OR REPLACE INTO completions (rowid, id, created, policy, version, rollout, status, record) VALUES (
    1 + max(coalesce((SELECT max(rowid) FROM completions), 0), coalesce((SELECT max(last) FROM places), 0)),
    ?, ?, ?, ?, ?, ?, ?
)
"""
"""SQLite by itself would give the place of the newest row again after that row was deleted, and whoever reads in the
order of places (`recorded`) would miss the next one."""
_CHUNK = 500
"""Ids in one SELECT: SQLite limits the variables of a statement."""


class SQLiteLedger:
    """A ledger in one SQLite file; see `Ledger` for its methods.

    Args:
        path: The file. It is created if it does not exist.

    Raises:
        LedgerError: The file cannot be made or opened.
        NewerSchema: A newer release wrote it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._commits = GroupCommit(self._write, self._finish)
        self._writer: sqlite3.Connection | None = None
        try:
            create_private(path)
            with closing(sqlite3.connect(path, timeout=30)) as db:
                SCHEMA.bring_up(db, path)
        except (OSError, sqlite3.Error) as error:
            raise LedgerError(f"the ledger at {path} cannot be opened: {error}") from error

    async def add(self, *completions: Completion) -> None:
        await self._commits.add(completions)

    def read(self, ids: Sequence[str]) -> dict[str, Completion]:
        rows = self._select("SELECT id, record FROM completions WHERE id IN ({})", ids)
        return {completion_id: from_json(Completion, record) for completion_id, record in rows}

    def rollout(self, rollout_id: str) -> list[Completion]:
        statement = "SELECT record FROM completions WHERE rollout IN ({}) ORDER BY created, rowid"
        return [from_json(Completion, record) for (record,) in self._select(statement, [writable(rollout_id)])]

    def sampled_versions(self, ids: Sequence[str]) -> set[tuple[str, int]]:
        rows = self._select(
            "SELECT DISTINCT policy, version FROM completions WHERE policy IS NOT NULL AND id IN ({})", ids
        )
        return set(rows)

    def recorded(self, after: int, limit: int) -> list[CompletionSummary]:
        statement = (
            "SELECT rowid, created, policy, version, rollout, status, "
            "coalesce(json_array_length(record, '$.token_ids'), 0), "
            "substr(CAST(coalesce(json_extract(record, '$.request.messages[#-1].content'), '') AS TEXT), 1, 300) "
            "FROM completions WHERE rowid > ? ORDER BY rowid LIMIT ?"
        )
        with self._reading() as db:
            db.text_factory = _readable  # SQLite makes bytes that are no UTF-8 of half a surrogate pair
            return [CompletionSummary(*row) for row in db.execute(statement, (after, limit))]

    def newest(self) -> float | None:
        with self._reading() as db:
            (created,) = db.execute("SELECT max(created) FROM completions").fetchone()
        return None if created is None else float(created)

    def purge(self, *, keep: Iterable[str] = (), days: float = RETENTION_DAYS, most_bytes: int | None = None) -> int:
        try:
            with closing(self._open()) as db:
                with db:
                    keep_place(db)
                    db.execute("CREATE TEMP TABLE keep (id TEXT PRIMARY KEY)")
                    db.executemany("INSERT OR IGNORE INTO keep VALUES (?)", ((kept,) for kept in keep))
                deleted = delete_in_slices(lambda rows: _delete_oldest(db, time.time() - days * 86400, rows))
                if most_bytes is not None:
                    deleted += delete_in_slices(
                        lambda rows: _delete_oldest(db, math.inf, rows, "rowid") if _used_bytes(db) > most_bytes else 0
                    )
                return deleted
        except sqlite3.Error as error:
            raise LedgerError(f"old completions in {self.path} cannot be deleted: {error}") from error

    @contextmanager
    def oldest_month(self, before: float, keep: Collection[str] = ()) -> Iterator[OldMonth]:
        """See `GivesMonths`."""
        try:
            with closing(self._open()) as db:
                yield OldMonth(db, before, keep)
        except sqlite3.Error as error:
            raise LedgerError(f"completions in {self.path} cannot be archived: {error}") from error

    def matching(
        self, *, rollouts: Sequence[str] = (), completions: Sequence[str] = (), policy: str | None = None
    ) -> dict[str, str | None]:
        select = "SELECT id, rollout FROM completions WHERE"
        rows = self._select(
            f"{select} rollout IN ({{}}) ORDER BY created, rowid", [writable(rollout) for rollout in rollouts]
        )
        rows += self._select(f"{select} id IN ({{}})", completions)
        if policy is not None:
            rows += self._select(f"{select} policy = {{}}", [policy])
        return dict(rows)

    def erase(self, completions: Sequence[str]) -> bool:
        try:
            with closing(self._open()) as db:
                with db:
                    keep_place(db)
                for start in range(0, len(completions), _CHUNK):
                    chunk = completions[start : start + _CHUNK]
                    with db:
                        db.execute(f"DELETE FROM completions WHERE id IN ({','.join('?' * len(chunk))})", chunk)
                return overwrite_deleted(db)
        except sqlite3.Error as error:
            raise LedgerError(f"completions in {self.path} cannot be deleted: {error}. Ask again") from error

    def close(self) -> None:
        self._commits.close()

    def _select(self, statement: str, ids: Sequence[str | int]) -> list[tuple[Any, ...]]:
        """Rows of a statement, in which `{}` stands for values. Opens a new connection, so any thread may call it."""
        rows: list[tuple[Any, ...]] = []
        with self._reading() as db:
            for start in range(0, len(ids), _CHUNK):
                chunk = ids[start : start + _CHUNK]
                rows += db.execute(statement.format(",".join("?" * len(chunk))), chunk)
        return rows

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        try:
            with closing(sqlite3.connect(f"{self.path.absolute().as_uri()}?mode=ro", uri=True, timeout=30)) as db:
                yield db
        except sqlite3.Error as error:
            raise LedgerError(f"the ledger at {self.path} cannot be read: {error}") from error

    def _write(self, completions: Sequence[Completion]) -> None:
        try:
            if self._writer is None:
                self._writer = self._open()
            with self._writer as db:
                db.executemany(_INSERT, map(_row, completions))
        except sqlite3.Error as failure:  # too many open files, say; the next call tries again
            raise LedgerError(f"the ledger at {self.path} cannot be written: {failure}") from failure

    def _finish(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _open(self) -> sqlite3.Connection:
        db = sqlite3.connect(self.path, timeout=30)
        try:
            db.execute("PRAGMA synchronous=FULL")
            db.execute("PRAGMA secure_delete=ON")
        except BaseException:
            db.close()
            raise
        return db


def _delete_oldest(db: sqlite3.Connection, before: float, most: int, by: str = "created") -> int:
    """Deletes completions that are not in the table `keep`, the oldest first, in a transaction; returns how many.

    Args:
        db: A connection without a transaction.
        before: Unix time from which on completions stay.
        most: How many at most.
        by: What says which are the oldest. The order of rows does not depend on a clock that was set back.
    """
    with db:
        return db.execute(
            "DELETE FROM completions WHERE id IN "
            f"(SELECT id FROM completions WHERE created < ? AND id NOT IN keep ORDER BY {by} LIMIT ?)",
            (before, most),
        ).rowcount


def _readable(text: bytes) -> str:
    return text.decode(errors="replace")


def _used_bytes(db: sqlite3.Connection) -> int:
    """Bytes of the pages that hold something. Free pages are used again; the file does not shrink."""
    names = ("page_count", "freelist_count", "page_size")
    pages, free, size = (db.execute(f"PRAGMA {name}").fetchone()[0] for name in names)
    return int((pages - free) * size)


def _row(completion: Completion) -> tuple[object, ...]:
    return (
        completion.id,
        completion.created,
        completion.policy,
        completion.version,
        completion.rollout,
        completion.status,
        to_json(completion),
    )
