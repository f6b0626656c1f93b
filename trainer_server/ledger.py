"""The ledger: every completion with its exact tokens, in SQLite (WAL). One gateway process is the only writer."""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path

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

RETENTION_DAYS = 30.0


class LedgerError(ARTError):
    """The ledger could not be written (a full disk, say). The answer is withheld: nothing unrecorded leaves."""


class Ledger:
    """Group commit on a thread of its own: `add` returns when the row is on disk, and never blocks the event loop."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._queue: queue.SimpleQueue[tuple[Completion, asyncio.Future[None]] | None] = queue.SimpleQueue()
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
        with closing(sqlite3.connect(self.path, timeout=30)) as db, db:
            db.execute("CREATE TEMP TABLE keep (id TEXT PRIMARY KEY)")
            db.executemany("INSERT OR IGNORE INTO keep VALUES (?)", ((one,) for one in keep))
            before = time.time() - days * 86400
            found = db.execute("DELETE FROM completions WHERE created < ? AND id NOT IN keep", (before,))
            return found.rowcount

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
                error: Exception | None = None
                try:
                    with db:
                        db.executemany(
                            "INSERT OR REPLACE INTO completions VALUES (?, ?, ?, ?, ?, ?, ?)",
                            (_row(completion) for completion, _ in batch),
                        )
                except sqlite3.Error as failure:
                    error = LedgerError(f"the ledger at {self.path} cannot be written: {failure}")
                for _, future in batch:
                    _resolve(future, error)
                if last:
                    return


def _row(c: Completion) -> tuple[object, ...]:
    return (c.id, c.created, c.policy, c.version, c.rollout, c.status, c.model_dump_json())


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
                found[one] = Completion.model_validate_json(record)
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
