"""The books in one SQLite file beside the ledger. Each use has a connection of its own."""

from __future__ import annotations

import shutil
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from trainer_server.common.home import create_private, overwrite_deleted
from trainer_server.common.schemas import DatabaseSchema, script
from trainer_server.ledger.base import DiskFull, LedgerError

_FIRST = """
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
    added = {"rollouts": "owner TEXT", "run_versions": "recorded INTEGER NOT NULL DEFAULT 0"}
    for table, column in added.items():
        if column.split()[0] not in {name for _, name, *_ in db.execute(f"PRAGMA table_info({table})")}:
            db.execute(f"ALTER TABLE {table} ADD COLUMN {column}")
    db.execute("UPDATE run_versions SET recorded = 1 WHERE run IN (SELECT number FROM runs WHERE trajectory IS NULL)")


SCHEMA = DatabaseSchema(script(_FIRST), script(_BY_AGE), script(_ERASED), script(_OUTCOMES), _add_owners)


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
            SCHEMA.bring_up(db, path)

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
