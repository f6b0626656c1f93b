"""The ledger in a SQLite file, and the books in another one: what a server has where nobody says otherwise.

Both are in WAL mode. The server is the only writer of both; the trainer process reads the ledger.
"""

from __future__ import annotations

import math
import shutil
import sqlite3
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from trainer_server.common.home import create_private, overwrite_deleted
from trainer_server.common.jsonl import from_json, to_json
from trainer_server.common.schemas import DatabaseSchema, script
from trainer_server.ledger.base import (
    COLUMNS,
    RETENTION_DAYS,
    CompletionSummary,
    DiskFull,
    LedgerError,
    LedgerRow,
    Row,
    beginning,
    month_of,
)
from trainer_server.ledger.books import chunks
from trainer_server.ledger.commits import GroupCommit, Record, delete_in_slices
from trainer_server.wire import Completion
from trainer_server.wire.text import writable

_COMPLETIONS = """
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
LEDGER_SCHEMA = DatabaseSchema(script(_COMPLETIONS), script(_BY_POLICY))
_INSERT = """
INSERT OR REPLACE INTO completions (rowid, id, created, policy, version, rollout, status, record) VALUES (
    1 + max(coalesce((SELECT max(rowid) FROM completions), 0), coalesce((SELECT max(last) FROM places), 0)),
    ?, ?, ?, ?, ?, ?, ?
)
"""
"""SQLite by itself would give the place of the newest row again after that row was deleted, and whoever reads in the
order of places (`recorded`) would miss the next one."""


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
                LEDGER_SCHEMA.bring_up(db, path)
        except (OSError, sqlite3.Error) as error:
            raise LedgerError(f"the ledger at {path} cannot be opened: {error}") from error

    async def add(self, *completions: Completion) -> None:
        await self._commits.add(completions)

    def row_of(self, completion: Completion) -> LedgerRow:
        return LedgerRow(completion.id, _columns(completion))

    async def add_rows(self, rows: Sequence[LedgerRow]) -> None:
        await self._commits.add(rows)

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
        with _errors(f"old completions in {self.path} cannot be deleted"), closing(self._open()) as db:
            _write_keep(db, keep)
            with db:
                keep_place(db)
            count = delete_in_slices(lambda rows: _delete_oldest(db, time.time() - days * 86400, rows))
            if most_bytes is not None:
                count += delete_in_slices(
                    lambda rows: _delete_oldest(db, math.inf, rows, "rowid") if _used_bytes(db) > most_bytes else 0
                )
            return count

    @contextmanager
    def oldest_month(self, before: float, keep: Collection[str] = ()) -> Iterator[OldMonth]:
        with _errors(f"completions in {self.path} cannot be archived"), closing(self._open()) as db:
            yield OldMonth(db, before, keep)

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
        with _errors(f"completions in {self.path} cannot be deleted", ". Ask again"), closing(self._open()) as db:
            with db:
                keep_place(db)
            for marks, ids in chunks(completions):
                with db:
                    db.execute(f"DELETE FROM completions WHERE id IN ({marks})", ids)
            return overwrite_deleted(db)

    def close(self) -> None:
        self._commits.close()

    def _select(self, statement: str, ids: Sequence[str | int]) -> list[tuple[Any, ...]]:
        """Rows of a statement, in which `{}` stands for values. Opens a new connection, so any thread may call it."""
        rows: list[tuple[Any, ...]] = []
        with self._reading() as db:
            for marks, values in chunks(ids):
                rows += db.execute(statement.format(marks), values)
        return rows

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        address = f"{self.path.absolute().as_uri()}?mode=ro"
        failure = f"the ledger at {self.path} cannot be read"
        with _errors(failure), closing(sqlite3.connect(address, uri=True, timeout=30)) as db:
            yield db

    def _write(self, completions: Sequence[Record]) -> None:
        with _errors(
            f"the ledger at {self.path} cannot be written"
        ):  # too many open files, say; a later call may do it
            if self._writer is None:
                self._writer = self._open()
            with self._writer as db:
                db.executemany(_INSERT, map(_columns, completions))

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


@contextmanager
def _errors(message: str, remedy: str = "") -> Iterator[None]:
    """Makes LedgerErrors of errors of SQLite."""
    try:
        yield
    except sqlite3.Error as error:
        raise LedgerError(f"{message}: {error}{remedy}") from error


def _write_keep(db: sqlite3.Connection, keep: Iterable[str]) -> None:
    """Writes ids of completions that stay into the temporary table `keep`."""
    with db:
        db.execute("CREATE TEMP TABLE keep (id TEXT PRIMARY KEY)")
        db.executemany("INSERT OR IGNORE INTO keep VALUES (?)", ((completion,) for completion in keep))


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


def _columns(completion: Record) -> tuple[object, ...]:
    if isinstance(completion, LedgerRow):
        columns: tuple[object, ...] = completion.columns
        return columns
    return (
        completion.id,
        completion.created,
        completion.policy,
        completion.version,
        completion.rollout,
        completion.status,
        to_json(completion),
    )


class OldMonth:
    """The oldest month of a ledger in SQLite: `Month`.

    Args:
        db: A connection without a transaction, of which nobody else uses the temporary tables.
        before: Unix time from which on completions stay.
        keep: Ids of completions that stay.
    """

    def __init__(self, db: sqlite3.Connection, before: float, keep: Collection[str]) -> None:
        self._db = db
        _write_keep(db, keep)
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
    """Writes down the place of a ledger's newest row, before it may be deleted. In a transaction."""
    (last,) = db.execute("SELECT max(rowid) FROM completions").fetchone()
    if last is not None:
        db.execute("DELETE FROM places WHERE last < ?", (last,))
        db.execute("INSERT INTO places SELECT ? WHERE NOT EXISTS (SELECT 1 FROM places)", (last,))


_BOOKS = """
CREATE TABLE IF NOT EXISTS rollouts (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    created REAL NOT NULL,
    changed REAL NOT NULL,
    spec TEXT
) STRICT;
CREATE TABLE IF NOT EXISTS rewards (rollout TEXT NOT NULL, record TEXT NOT NULL) STRICT;
CREATE INDEX IF NOT EXISTS rewards_rollout ON rewards (rollout);
CREATE TABLE IF NOT EXISTS policies (rollout TEXT NOT NULL, policy TEXT NOT NULL, PRIMARY KEY (rollout, policy)) STRICT;
CREATE TABLE IF NOT EXISTS runs (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    started REAL NOT NULL,
    changed REAL NOT NULL,
    seconds REAL NOT NULL DEFAULT 0,
    trajectory TEXT,
    policy TEXT,
    version INTEGER,
    several INTEGER NOT NULL DEFAULT 0,
    scenario TEXT,
    reward REAL,
    rewarded_by TEXT,
    failed TEXT,
    evaluation INTEGER NOT NULL DEFAULT 0,
    traced INTEGER NOT NULL DEFAULT 0,
    graph TEXT,
    calls INTEGER NOT NULL DEFAULT 0,
    tokens INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX IF NOT EXISTS runs_started ON runs (started);
CREATE INDEX IF NOT EXISTS runs_changed ON runs (changed);
CREATE INDEX IF NOT EXISTS runs_policy ON runs (policy, version, started);
CREATE INDEX IF NOT EXISTS runs_scenario ON runs (scenario, started) WHERE scenario IS NOT NULL;
CREATE INDEX IF NOT EXISTS runs_evaluation ON runs (policy, version, reward) WHERE evaluation = 1;
CREATE INDEX IF NOT EXISTS runs_trajectory ON runs (trajectory) WHERE trajectory IS NOT NULL;
CREATE VIRTUAL TABLE IF NOT EXISTS run_texts USING fts5 (text);
CREATE TABLE IF NOT EXISTS run_versions (
    run INTEGER NOT NULL, policy TEXT NOT NULL, version INTEGER NOT NULL, PRIMARY KEY (run, policy, version)
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS run_traces (run INTEGER PRIMARY KEY, record BLOB NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS run_steps (
    run INTEGER NOT NULL, job TEXT NOT NULL, policy TEXT NOT NULL, reference TEXT NOT NULL, reward REAL,
    PRIMARY KEY (run, job, reference)
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS run_steps_job ON run_steps (job);
CREATE TABLE IF NOT EXISTS run_minutes (
    minute INTEGER NOT NULL, policy TEXT NOT NULL, completions INTEGER NOT NULL, tokens INTEGER NOT NULL,
    failed INTEGER NOT NULL, PRIMARY KEY (minute, policy)
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS run_sources (source TEXT PRIMARY KEY, place TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS draws (
    policy TEXT NOT NULL, rollout TEXT NOT NULL, trial REAL NOT NULL, version INTEGER NOT NULL,
    taken INTEGER NOT NULL, time REAL NOT NULL, PRIMARY KEY (policy, rollout)
) STRICT;
CREATE INDEX IF NOT EXISTS draws_trial ON draws (policy, trial);
INSERT OR IGNORE INTO runs (id, started, changed, evaluation, scenario, reward, rewarded_by)
SELECT id, created, changed, coalesce(json_extract(spec, '$.evaluation'), 0),
    nullif(json_extract(spec, '$.scenario.id'), ''), json_extract(last, '$.reward'), json_extract(last, '$.source')
FROM (SELECT rollouts.*, (SELECT record FROM rewards WHERE rollout = id ORDER BY rowid DESC LIMIT 1) AS last
    FROM rollouts);
"""
"""The last statement takes up rollouts that were registered or rewarded before there was a list of runs."""
_BY_AGE = """
CREATE INDEX IF NOT EXISTS rollouts_changed ON rollouts (changed);
CREATE INDEX IF NOT EXISTS draws_time ON draws (time);
"""
"""For retention."""
_INDEX_BYTES = 64 * 1024
"""Free space that suffices for the index of a write-ahead log to grow."""

_ERASED = "CREATE TABLE IF NOT EXISTS erased (rollout TEXT PRIMARY KEY) STRICT, WITHOUT ROWID;"
"""Ids of rollouts that a user deleted: what a client tells of them afterwards is refused."""
_OUTCOMES = """
CREATE TABLE IF NOT EXISTS run_nodes (
    run INTEGER NOT NULL, node TEXT NOT NULL, reward REAL NOT NULL, PRIMARY KEY (run, node)
) STRICT, WITHOUT ROWID;
DROP INDEX IF EXISTS runs_evaluation;
CREATE INDEX IF NOT EXISTS runs_outcomes ON runs (policy, evaluation, version, scenario, reward)
    WHERE reward IS NOT NULL;
"""
"""Rewards by node, and an index that has all that curves are made of."""


def _add_owners(db: sqlite3.Connection) -> None:
    """The name of the token that used a rollout first, NULL for rollouts of earlier releases; and whether the ledger
    says that a version answered in a run, or a client."""
    columns = {"rollouts": "owner TEXT", "run_versions": "recorded INTEGER NOT NULL DEFAULT 0"}
    for table, column in columns.items():
        if column.split()[0] not in {name for _, name, *_ in db.execute(f"PRAGMA table_info({table})")}:
            db.execute(f"ALTER TABLE {table} ADD COLUMN {column}")
    db.execute("UPDATE run_versions SET recorded = 1 WHERE run IN (SELECT number FROM runs WHERE trajectory IS NULL)")


BOOKS_SCHEMA = DatabaseSchema(script(_BOOKS), script(_BY_AGE), script(_ERASED), script(_OUTCOMES), _add_owners)


class SQLiteBooks:
    """The books in a SQLite file; see `Books`. This process is the only writer.

    Args:
        path: The file. It is created if it does not exist.

    Raises:
        LedgerError: The file cannot be made or opened.
        NewerSchema: A newer release wrote it.
    """

    shared = False
    like = "LIKE"
    has_words = "number IN (SELECT rowid FROM run_texts WHERE run_texts MATCH ?)"

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        try:
            create_private(path)
        except OSError as error:
            raise LedgerError(f"the rollouts at {path} cannot be opened: {error}") from error
        with self._connect() as db:
            BOOKS_SCHEMA.bring_up(db, path)

    def words(self, terms: Sequence[tuple[str, bool]]) -> str:
        return " ".join(f'"{word}"{"*" if begins else ""}' for word, begins in terms)

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        with self._connect() as db:
            db.execute("PRAGMA query_only = 1")
            yield db

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        with self._lock, self._connect() as db, db:
            yield db

    def overwrite(self) -> bool:
        with self._lock, self._connect() as db:
            with db:
                db.execute("INSERT INTO run_texts (run_texts) VALUES ('optimize')")  # its index keeps deleted words
            return overwrite_deleted(db)

    def close(self) -> None:
        pass

    @contextmanager
    def _connect(self) -> Iterator[sqlite3.Connection]:
        try:
            with closing(sqlite3.connect(self._path, timeout=30)) as db:
                db.execute("PRAGMA synchronous=FULL")
                db.execute("PRAGMA secure_delete=ON")
                yield db
        except sqlite3.Error as error:
            text = f"the rollouts in {self._path} cannot be read or written: {error}"
            raise (DiskFull if _full(error, self._path) else LedgerError)(text) from error


def _full(error: sqlite3.Error, path: Path) -> bool:
    """Whether a database could not be written, or not even be read, because its disk is full."""
    code = error.sqlite_errorcode & 0xFF if isinstance(error, sqlite3.OperationalError) else None
    if code == sqlite3.SQLITE_IOERR:  # the index of a write-ahead log, which readers make too, found no space
        return shutil.disk_usage(path.parent).free < _INDEX_BYTES
    return code == sqlite3.SQLITE_FULL
