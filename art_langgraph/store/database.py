"""The database of a trajectory store.

The store is written in SQL that SQLite and PostgreSQL share; `?` stands for a value. What differs is behind `Database`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from trainer_server.wire import ARTError, ConfigError
from trainer_server.wire.text import writable

PATIENCE = 30.0
"""Seconds for which a connection waits while another process writes."""


FIRST_TABLES = """
CREATE TABLE IF NOT EXISTS trajectories (
    {rowid}id {text} PRIMARY KEY, started {real} NOT NULL, scenario {text} NOT NULL, graph {text}, thread {text},
    run {text}, error TEXT, record TEXT NOT NULL
){strict};
CREATE INDEX IF NOT EXISTS trajectories_started ON trajectories (started);
CREATE INDEX IF NOT EXISTS trajectories_scenario ON trajectories {by_hash}(scenario);
CREATE INDEX IF NOT EXISTS trajectories_run ON trajectories (run);
CREATE INDEX IF NOT EXISTS trajectories_thread ON trajectories {by_hash}(thread);
CREATE TABLE IF NOT EXISTS begun (id {text} PRIMARY KEY, started {real} NOT NULL, record TEXT NOT NULL){strict};
CREATE TABLE IF NOT EXISTS completions ({rowid}trajectory {text} NOT NULL, record TEXT NOT NULL){strict};
CREATE INDEX IF NOT EXISTS completions_trajectory ON completions (trajectory);
CREATE TABLE IF NOT EXISTS resumed ({rowid}trajectory {text} PRIMARY KEY, first {text} NOT NULL){strict};
CREATE INDEX IF NOT EXISTS resumed_first ON resumed (first);
CREATE TABLE IF NOT EXISTS scores (
    {rowid}trajectory {text} NOT NULL, time {real} NOT NULL, record TEXT NOT NULL
){strict};
CREATE INDEX IF NOT EXISTS scores_trajectory ON scores (trajectory);
CREATE TABLE IF NOT EXISTS steps (
    {rowid}policy {text} NOT NULL, step {text} NOT NULL, trajectory {text} NOT NULL,
    ended INTEGER NOT NULL DEFAULT 0, version INTEGER, PRIMARY KEY (policy, step, trajectory)
){strict};
CREATE TABLE IF NOT EXISTS evaluations (
    {rowid}key {text} NOT NULL, version INTEGER NOT NULL, trajectories TEXT NOT NULL, PRIMARY KEY (key, version)
){strict};
CREATE TABLE IF NOT EXISTS autopilots (policy {text} PRIMARY KEY, record TEXT NOT NULL){strict};
CREATE TABLE IF NOT EXISTS autopilot_history ({rowid}policy {text} NOT NULL, record TEXT NOT NULL){strict};
"""
"""The tables of the first release, those of the autopilot's memory (`auto_pilot/state_store.py`) included. `text` and
`real` are types; `rowid` is the column that SQLite has by itself. Never change them: a database adds migrations."""
TUNINGS = "CREATE TABLE tunings (key {text} PRIMARY KEY, max_concurrency INTEGER NOT NULL){strict};"
"""The table of what trainings found for themselves, which a migration of each database adds."""


class StoreUnavailable(ConfigError):
    """The trajectory store cannot be used: a full disk, a lock, a database that does not answer.

    Args:
        name: The store, as messages name it.
        reason: Message of the database.
    """

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"the trajectory store {name} cannot be used: {reason}")
        self.reason = reason


class DuplicateRun(ARTError):
    """The store has another run with this id.

    Args:
        trajectory_id: The id.
    """

    def __init__(self, trajectory_id: str) -> None:
        super().__init__(
            f"the trajectory store has another run with the id {trajectory_id}: a finished run is never changed"
        )


class Result(Protocol):
    """What a statement gave."""

    @property
    def rowcount(self) -> int: ...

    def fetchone(self) -> Any: ...

    def fetchall(self) -> list[Any]: ...

    def __iter__(self) -> Iterator[Any]: ...


class Connection(Protocol):
    """A connection to the database. Only the thread that opened it may use it."""

    def execute(self, query: str, values: Sequence[Any] = (), /) -> Result: ...

    def executemany(self, query: str, rows: Iterable[Sequence[Any]], /) -> object: ...

    def transaction(self) -> AbstractContextManager[None]:
        """A transaction, which is durable when the block has ended. An exception rolls it back. There is one at a time,
        among all processes that share the database."""
        ...


class Database(Protocol):
    """The database. Any thread may call it, and several processes may use it."""

    name: str
    """The database, as messages name it: a path, or an address without secrets."""
    record_size: str
    """The bytes that a record takes in the database, as an expression."""

    def texts(self, array: str) -> str:
        """A table whose column `value` has the texts of a JSON array (`json_array`).

        Args:
            array: An expression for the array: `?`, or a column.
        """
        ...

    def connect(self, patience: float = PATIENCE) -> AbstractContextManager[Connection]:
        """A connection. Raises StoreUnavailable, also in the block, if the database fails.

        Args:
            patience: Seconds to wait while another process writes.
        """
        ...

    def overwrite(self) -> None:
        """Leaves nothing of what was deleted in the files of the database. Raises StoreUnavailable, also where another
        transaction still reads what was deleted."""
        ...

    def alone(self, name: str) -> AbstractContextManager[Callable[[], bool] | None]:
        """A lock that one process at a time holds, until the block or the process ends.

        Args:
            name: Of the lock: letters, digits, `.`, `_` and `-`.

        Returns:
            Tells whether the lock is still held: it is lost with the database server that keeps it. None: another
            process holds it.
        """
        ...


def json_array(texts: Iterable[str]) -> str:
    """Texts as a value of the table `Database.texts`."""
    return json.dumps([storable(text) for text in texts])


def storable(text: str) -> str:
    """A text as a column of both databases can hold it: without half surrogate pairs, and without the character 0."""
    return writable(text).replace("\0", "\ufffd")
