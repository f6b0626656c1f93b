"""The ledger: every completion with its exact tokens, in SQLite (WAL). One gateway process is the only writer."""

from __future__ import annotations

import asyncio
import json
import queue
import sqlite3
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path

from pydantic import ValidationError
from pydantic_core import PydanticSerializationError

from trainer_server.wire import ARTError, Completion

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
"""
_BATCH = 512
"""Rows of one transaction at most; what arrives while a commit is under way shares the next one."""
_PURGED = 1000
"""Rows that are deleted in one transaction, which answers have to wait for."""

_Entry = tuple[Completion, asyncio.Future[None]]
"""A completion, and who waits for it to be on disk."""

RETENTION_DAYS = 30.0


class LedgerError(ARTError):
    """The ledger could not be written (a full disk, say). The answer is withheld: nothing unrecorded leaves."""


class Ledger:
    """Group commit on a thread of its own: `add` returns when the row is on disk, and never blocks the event loop."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._queue: queue.SimpleQueue[_Entry | None] = queue.SimpleQueue()
        with closing(sqlite3.connect(path)) as db:
            db.execute("PRAGMA journal_mode=WAL")
            db.executescript(_SCHEMA)
        self._thread = threading.Thread(target=self._write, name="ledger", daemon=True)
        self._thread.start()

    async def add(self, *completions: Completion) -> None:
        """Records completions; returns once they are committed. Raises LedgerError if they could not be."""
        loop = asyncio.get_running_loop()
        committed = [loop.create_future() for _ in completions]
        for pair in zip(completions, committed, strict=True):
            self._queue.put(pair)
        await asyncio.gather(*committed)

    def close(self) -> None:
        """Commits what is queued and stops the thread."""
        self._queue.put(None)
        self._thread.join()

    def purge(self, *, keep: Iterable[str] = (), days: float = RETENTION_DAYS) -> int:
        """Deletes completions older than `days`, never those in `keep` (what open jobs name); returns how many."""
        before, gone = time.time() - days * 86400, 0
        with closing(sqlite3.connect(self.path, timeout=30)) as db:
            with db:
                db.execute("CREATE TEMP TABLE keep (id TEXT PRIMARY KEY)")
                db.executemany("INSERT OR IGNORE INTO keep VALUES (?)", ((one,) for one in keep))
            while True:
                started = time.monotonic()
                with db:
                    found = db.execute(
                        "DELETE FROM completions WHERE id IN "
                        "(SELECT id FROM completions WHERE created < ? AND id NOT IN keep LIMIT ?)",
                        (before, _PURGED),
                    ).rowcount
                gone += found
                if found < _PURGED:
                    return gone
                time.sleep(time.monotonic() - started)  # SQLite has no line to stand in: answers need gaps to meet

    def _write(self) -> None:
        with closing(sqlite3.connect(self.path, timeout=30)) as db:
            db.execute("PRAGMA synchronous=FULL")
            while (first := self._queue.get()) is not None:
                batch = [first]
                last = False
                while len(batch) < _BATCH and not self._queue.empty():
                    if (more := self._queue.get()) is None:
                        last = True
                        break
                    batch.append(more)
                self._commit(db, batch)
                if last:
                    return

    def _commit(self, db: sqlite3.Connection, batch: Sequence[_Entry]) -> None:
        """Writes rows in one transaction, and tells who waits for them how that went."""
        error: Exception | None = None
        try:
            with db:
                db.executemany(
                    "INSERT OR REPLACE INTO completions VALUES (?, ?, ?, ?, ?, ?, ?)",
                    (_row(completion) for completion, _ in batch),
                )
        except sqlite3.Error as failure:
            error = LedgerError(f"the ledger at {self.path} cannot be written: {failure}")
        except Exception as failure:  # a row's own fault: the thread lives on, for without it every answer would hang
            if len(batch) > 1:
                for entry in batch:
                    self._commit(db, [entry])
                return
            error = LedgerError(f"{batch[0][0].id} cannot be written to the ledger: {failure}")
        for _, future in batch:
            _resolve(future, error)


def _row(c: Completion) -> tuple[object, ...]:
    try:
        record = c.model_dump_json()
    except PydanticSerializationError:  # half a surrogate pair, which clients do send: escaped, as JSON allows
        record = json.dumps(c.model_dump())
    return (c.id, c.created, c.policy, c.version, c.rollout, c.status, record)


def _read(record: str) -> Completion:
    try:
        return Completion.model_validate_json(record)
    except ValidationError:  # pydantic's parser knows no half surrogate pairs
        return Completion.model_validate(json.loads(record))


def _resolve(future: asyncio.Future[None], error: Exception | None) -> None:
    def settle() -> None:
        if future.done():  # the request was cancelled meanwhile; the row is there all the same
            return
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)

    try:
        future.get_loop().call_soon_threadsafe(settle)
    except RuntimeError:  # the loop is closed: nobody waits any more
        return


def read_completions(path: Path, ids: Sequence[str]) -> dict[str, Completion]:
    """Looks completions up by id, read-only, from any process. Ids without a row are absent from the answer."""
    found: dict[str, Completion] = {}
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=30)) as db:
        for start in range(0, len(ids), 500):
            some = ids[start : start + 500]
            marks = ",".join("?" * len(some))
            for one, record in db.execute(f"SELECT id, record FROM completions WHERE id IN ({marks})", some):
                found[one] = _read(record)
    return found


def sampled_versions(path: Path, ids: Sequence[str]) -> set[tuple[str, int]]:
    """The (policy, version) pairs that sampled these completions."""
    found: set[tuple[str, int]] = set()
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=30)) as db:
        for start in range(0, len(ids), 500):
            some = ids[start : start + 500]
            marks = ",".join("?" * len(some))
            asked = f"SELECT DISTINCT policy, version FROM completions WHERE policy IS NOT NULL AND id IN ({marks})"
            found.update(db.execute(asked, some))
    return found
