"""The ledger in one SQLite file, in WAL mode. The server is the only writer; the trainer process reads."""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from trainer_server.ledger.base import RETENTION_DAYS, LedgerError, Recorded
from trainer_server.wire import Completion
from trainer_server.wire.home import create_private
from trainer_server.wire.jsonl import from_json, to_json
from trainer_server.wire.text import writable

_SCHEMA = """
CREATE TABLE IF NOT EXISTS completions (
    id TEXT PRIMARY KEY,
    created REAL NOT NULL,
    policy TEXT,
    version INTEGER,
    rollout TEXT,
    status TEXT NOT NULL,
    record TEXT NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS completions_created ON completions (created);
CREATE INDEX IF NOT EXISTS completions_rollout ON completions (rollout, created) WHERE rollout IS NOT NULL;
"""
_BATCH = 512
"""Largest number of rows in one transaction."""
_PURGED = 1000
"""Rows that are deleted in one transaction. Answers wait while it runs."""

_Entry = tuple[Completion, asyncio.Future[None]]
"""A completion, and the future that is resolved once it is on disk."""

_CHUNK = 500
"""Ids in one SELECT: SQLite limits the variables of a statement."""


class SQLiteLedger:
    """A ledger in one SQLite file; see `Ledger` for its methods.

    Rows that arrive during a commit share the next commit (group commit). A thread writes them. The first `add` starts
    it, so that a process that only reads has no such thread.

    Args:
        path: The file. It is created if it does not exist.

    Raises:
        LedgerError: The file cannot be made or opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._queue: queue.SimpleQueue[_Entry | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        try:
            create_private(path)
            with closing(sqlite3.connect(path, timeout=30)) as db:
                db.execute("PRAGMA journal_mode=WAL")
                db.executescript(_SCHEMA)
        except (OSError, sqlite3.Error) as error:
            raise LedgerError(f"the ledger at {path} cannot be opened: {error}") from error

    async def add(self, *completions: Completion) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._write, name="ledger", daemon=True)
            self._thread.start()
        loop = asyncio.get_running_loop()
        committed = [loop.create_future() for _ in completions]
        for pair in zip(completions, committed, strict=True):
            self._queue.put(pair)
        await asyncio.gather(*committed)

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

    def recorded(self, after: int, limit: int) -> list[Recorded]:
        statement = (
            "SELECT rowid, created, policy, version, rollout, status, "
            "coalesce(json_array_length(record, '$.token_ids'), 0), "
            "substr(CAST(coalesce(json_extract(record, '$.request.messages[#-1].content'), '') AS TEXT), 1, 300) "
            f"FROM completions WHERE rowid > {{}} ORDER BY rowid LIMIT {limit:d}"
        )
        return [Recorded(*row) for row in self._select(statement, [after])]

    def purge(self, *, keep: Iterable[str] = (), days: float = RETENTION_DAYS) -> int:
        before, deleted = time.time() - days * 86400, 0
        try:
            with closing(sqlite3.connect(self.path, timeout=30)) as db:
                with db:
                    db.execute("CREATE TEMP TABLE keep (id TEXT PRIMARY KEY)")
                    db.executemany("INSERT OR IGNORE INTO keep VALUES (?)", ((kept,) for kept in keep))
                while True:
                    started = time.monotonic()
                    with db:
                        count = db.execute(
                            "DELETE FROM completions WHERE id IN "
                            "(SELECT id FROM completions WHERE created < ? AND id NOT IN keep LIMIT ?)",
                            (before, _PURGED),
                        ).rowcount
                    deleted += count
                    if count < _PURGED:
                        return deleted
                    time.sleep(time.monotonic() - started)  # SQLite does not queue writers: other writers need a gap
        except sqlite3.Error as error:
            raise LedgerError(f"old completions in {self.path} cannot be deleted: {error}") from error

    def close(self) -> None:
        if self._thread is None:
            return
        self._queue.put(None)
        self._thread.join()
        self._thread = None

    def _select(self, statement: str, ids: Sequence[str | int]) -> list[tuple[Any, ...]]:
        """Rows of a statement, in which `{}` stands for values. Opens a new connection, so any thread may call it."""
        rows: list[tuple[Any, ...]] = []
        try:
            with closing(sqlite3.connect(f"{self.path.absolute().as_uri()}?mode=ro", uri=True, timeout=30)) as db:
                for start in range(0, len(ids), _CHUNK):
                    chunk = ids[start : start + _CHUNK]
                    rows += db.execute(statement.format(",".join("?" * len(chunk))), chunk)
        except sqlite3.Error as error:
            raise LedgerError(f"the ledger at {self.path} cannot be read: {error}") from error
        return rows

    def _write(self) -> None:
        db: sqlite3.Connection | None = None
        last = False
        while not last and (first := self._queue.get()) is not None:
            batch = [first]
            while len(batch) < _BATCH and not self._queue.empty():
                if (more := self._queue.get()) is None:
                    last = True
                    break
                batch.append(more)
            try:
                db = db or self._open()
            except sqlite3.Error as failure:  # too many open files, say; the next batch tries again
                self._settle(batch, failure)
            else:
                self._commit(db, batch)
        if db is not None:
            db.close()

    def _open(self) -> sqlite3.Connection:
        db = sqlite3.connect(self.path, timeout=30)
        try:
            db.execute("PRAGMA synchronous=FULL")
        except BaseException:
            db.close()
            raise
        return db

    def _commit(self, db: sqlite3.Connection, batch: Sequence[_Entry]) -> None:
        """Writes rows in one transaction, and resolves the futures of the callers of `add`."""
        error: Exception | None = None
        try:
            with db:
                db.executemany(
                    "INSERT OR REPLACE INTO completions VALUES (?, ?, ?, ?, ?, ?, ?)",
                    (_row(completion) for completion, _ in batch),
                )
        except sqlite3.Error as failure:
            self._settle(batch, failure)
            return
        except Exception as failure:  # one row is at fault: the thread must go on, or every later answer would hang
            if len(batch) > 1:
                for entry in batch:
                    self._commit(db, [entry])
                return
            error = LedgerError(f"{batch[0][0].id} cannot be written to the ledger: {failure}")
        for _, future in batch:
            _resolve(future, error)

    def _settle(self, batch: Sequence[_Entry], failure: sqlite3.Error) -> None:
        """Tells the callers of `add` that SQLite failed."""
        error = LedgerError(f"the ledger at {self.path} cannot be written: {failure}")
        for _, future in batch:
            _resolve(future, error)


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


def _resolve(future: asyncio.Future[None], error: Exception | None) -> None:
    def settle() -> None:
        if future.done():  # the request was cancelled meanwhile; the row is written all the same
            return
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)

    try:
        future.get_loop().call_soon_threadsafe(settle)
    except RuntimeError:  # the loop is closed: no caller waits any more
        return
