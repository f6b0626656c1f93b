"""The books in a PostgreSQL database, which all servers of a fleet share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from trainer_server.ledger.postgres.database import Database, Db
from trainer_server.wire.text import storable

_FIRST = """
CREATE TABLE rollouts (
    number BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id TEXT COLLATE "C" NOT NULL UNIQUE,
    created DOUBLE PRECISION NOT NULL,
    changed DOUBLE PRECISION NOT NULL,
    spec TEXT
);
CREATE INDEX rollouts_changed ON rollouts (changed);
CREATE TABLE rewards (
    rowid BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, rollout TEXT COLLATE "C" NOT NULL, record TEXT NOT NULL
);
CREATE INDEX rewards_rollout ON rewards (rollout, rowid);
CREATE TABLE policies (
    rollout TEXT COLLATE "C" NOT NULL, policy TEXT COLLATE "C" NOT NULL, PRIMARY KEY (rollout, policy)
);
CREATE INDEX policies_policy ON policies (policy);
CREATE TABLE runs (
    number BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id TEXT COLLATE "C" NOT NULL UNIQUE,
    started DOUBLE PRECISION NOT NULL,
    changed DOUBLE PRECISION NOT NULL,
    seconds DOUBLE PRECISION NOT NULL DEFAULT 0,
    trajectory TEXT COLLATE "C",
    policy TEXT COLLATE "C",
    version INTEGER,
    several INTEGER NOT NULL DEFAULT 0,
    scenario TEXT COLLATE "C",
    reward DOUBLE PRECISION,
    rewarded_by TEXT,
    failed TEXT,
    evaluation INTEGER NOT NULL DEFAULT 0,
    traced INTEGER NOT NULL DEFAULT 0,
    graph TEXT,
    calls BIGINT NOT NULL DEFAULT 0,
    tokens BIGINT NOT NULL DEFAULT 0
);
CREATE INDEX runs_started ON runs (started, number);
CREATE INDEX runs_changed ON runs (changed);
CREATE INDEX runs_policy ON runs (policy, version, started);
CREATE INDEX runs_scenario ON runs (scenario, started) WHERE scenario IS NOT NULL;
CREATE INDEX runs_evaluation ON runs (policy, version, reward) WHERE evaluation = 1;
CREATE INDEX runs_trajectory ON runs (trajectory) WHERE trajectory IS NOT NULL;
CREATE TABLE run_texts (
    rowid BIGINT PRIMARY KEY,
    text TEXT NOT NULL,
    words TSVECTOR GENERATED ALWAYS AS (array_to_tsvector(string_to_array(text, ' '))) STORED
);
CREATE INDEX run_texts_words ON run_texts USING gin (words);
CREATE TABLE run_versions (
    run BIGINT NOT NULL, policy TEXT COLLATE "C" NOT NULL, version INTEGER NOT NULL, PRIMARY KEY (run, policy, version)
);
CREATE INDEX run_versions_policy ON run_versions (policy);
CREATE TABLE run_traces (run BIGINT PRIMARY KEY, record BYTEA NOT NULL);
CREATE TABLE run_steps (
    run BIGINT NOT NULL, job TEXT COLLATE "C" NOT NULL, policy TEXT COLLATE "C" NOT NULL,
    reference TEXT COLLATE "C" NOT NULL, reward DOUBLE PRECISION, PRIMARY KEY (run, job, reference)
);
CREATE TABLE run_minutes (
    minute BIGINT NOT NULL, policy TEXT COLLATE "C" NOT NULL, completions BIGINT NOT NULL, tokens BIGINT NOT NULL,
    failed BIGINT NOT NULL, PRIMARY KEY (minute, policy)
);
CREATE TABLE run_sources (source TEXT COLLATE "C" PRIMARY KEY, place TEXT NOT NULL);
CREATE TABLE draws (
    policy TEXT COLLATE "C" NOT NULL, rollout TEXT COLLATE "C" NOT NULL, trial DOUBLE PRECISION NOT NULL,
    version INTEGER NOT NULL, taken INTEGER NOT NULL, time DOUBLE PRECISION NOT NULL, PRIMARY KEY (policy, rollout)
);
CREATE INDEX draws_trial ON draws (policy, trial);
CREATE INDEX draws_time ON draws (time);
CREATE TABLE erased (rollout TEXT COLLATE "C" PRIMARY KEY);
ALTER TABLE rollouts ALTER COLUMN spec SET STATISTICS 0;
ALTER TABLE rewards ALTER COLUMN record SET STATISTICS 0;
ALTER TABLE runs ALTER COLUMN failed SET STATISTICS 0;
ALTER TABLE run_texts ALTER COLUMN text SET STATISTICS 0, ALTER COLUMN words SET STATISTICS 0;
ALTER TABLE run_traces ALTER COLUMN record SET STATISTICS 0;
"""
"""Without statistics, the planner's catalogue has no texts of runs, which `overwrite` could not delete."""
_OUTCOMES = """
CREATE TABLE run_nodes (
    run BIGINT NOT NULL, node TEXT COLLATE "C" NOT NULL, reward DOUBLE PRECISION NOT NULL, PRIMARY KEY (run, node)
);
DROP INDEX runs_evaluation;
CREATE INDEX runs_outcomes ON runs (policy, evaluation, version, scenario, reward) WHERE reward IS NOT NULL;
"""
"""Rewards by node, and an index that has all that curves are made of."""
_OWNERS = """
ALTER TABLE rollouts ADD COLUMN owner TEXT;
ALTER TABLE run_versions ADD COLUMN recorded INTEGER NOT NULL DEFAULT 0;
UPDATE run_versions SET recorded = 1 WHERE run IN (SELECT number FROM runs WHERE trajectory IS NULL);
"""
"""The name of the token that used a rollout first; and whether the ledger says that a version answered in a run, or a
client."""
_LOCK = "CREATE TABLE books_lock ();"
"""It is empty: a server that writes locks it. A table with rows would not be vacuumed by itself while servers write."""
_WITH_TEXTS = (
    "rollouts",
    "rewards",
    "policies",
    "runs",
    "run_texts",
    "run_versions",
    "run_traces",
    "run_steps",
    "run_nodes",
    "draws",
)


class PostgresBooks:
    """The books in a PostgreSQL database; see `Books`.

    Args:
        url: `postgresql://…`, as libpq reads it.

    Raises:
        ConfigError, LedgerError, NewerSchema: The database cannot be used; `Database` says why.
    """

    shared = True
    like = "ILIKE"
    has_words = "number IN (SELECT rowid FROM run_texts WHERE words @@ CAST(? AS tsquery))"

    def __init__(self, url: str) -> None:
        self._database = Database(url, "rollouts", [_FIRST, _OUTCOMES, _LOCK, _OWNERS])

    def words(self, terms: Sequence[tuple[str, bool]]) -> str:
        return " & ".join(f"'{word}'{':*' if begins else ''}" for word, begins in terms)

    @contextmanager
    def reading(self) -> Iterator[_Connection]:
        with self._database.connection("read") as db:
            yield _Connection(db)

    @contextmanager
    def writing(self) -> Iterator[_Connection]:
        with self._database.connection("written") as db, db.transaction():
            db.execute("LOCK TABLE books_lock IN EXCLUSIVE MODE")  # unlike a SELECT, it waits without a snapshot
            yield _Connection(db)

    def overwrite(self) -> bool:
        self._database.overwrite(*_WITH_TEXTS)
        return True

    def close(self) -> None:
        self._database.close()


class _Connection:
    """A connection to which `?` stands for a value, as to SQLite."""

    def __init__(self, db: Db) -> None:
        self._db = db

    def execute(self, query: str, values: Sequence[Any] = (), /) -> Any:
        return self._db.execute(_convert_marks(query), _storable(values))

    def executemany(self, query: str, rows: Iterable[Sequence[Any]], /) -> None:
        with self._db.cursor() as cursor:
            cursor.executemany(_convert_marks(query), [_storable(row) for row in rows])


def _convert_marks(query: str) -> Any:
    return query.replace("%", "%%").replace("?", "%s")


def _storable(values: Sequence[Any]) -> list[Any]:
    return [storable(value) if isinstance(value, str) else value for value in values]
