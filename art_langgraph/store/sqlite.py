"""A trajectory store in a SQLite file (WAL)."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from filelock import lock_descriptor

from art_langgraph.store.database import FIRST_TABLES, PATIENCE, TUNINGS, StoreUnavailable
from trainer_server.common.home import create_private, overwrite_deleted
from trainer_server.common.schemas import DatabaseSchema, script
from trainer_server.wire import ConfigError

SCHEMA = DatabaseSchema(
    script(FIRST_TABLES.format(text="TEXT", real="REAL", rowid="", strict=" STRICT", by_hash="")),
    script(TUNINGS.format(text="TEXT", strict=" STRICT")),
)
"""The file's tables."""


class SQLiteDatabase:
    """A SQLite file as a `Database`.

    Only the user may read the file, since it has what people and models wrote. A file that exists keeps its
    permissions.

    Args:
        path: The file, created if it is missing, for its owner only.

    Raises:
        ConfigError: The file cannot be made or opened, or a newer release wrote it (NewerSchema).
    """

    record_size = "length(CAST(record AS BLOB))"

    def __init__(self, path: Path) -> None:
        self.name, self._path = str(path), path
        try:
            create_private(path)
            with closing(self._open()) as db:
                SCHEMA.bring_up(db, path)
        except (OSError, sqlite3.Error) as error:
            raise ConfigError(
                f"the trajectory store {path} cannot be opened: {error}. Name another file, or another directory "
                "with ART_HOME"
            ) from error

    def texts(self, array: str) -> str:
        return f"(SELECT value FROM json_each({array}))"

    @contextmanager
    def connect(self, patience: float = PATIENCE) -> Iterator[_Connection]:
        with _errors(self.name), closing(self._open(patience)) as db:
            db.isolation_level = None  # transactions begin where `transaction` says
            db.execute("PRAGMA secure_delete=ON")  # what is deleted is overwritten in its pages
            yield _Connection(db, self.name)

    def overwrite(self) -> None:
        with _errors(self.name), closing(self._open()) as db:
            overwrite_deleted(db)

    @contextmanager
    def alone(self, name: str) -> Iterator[Callable[[], bool] | None]:
        lock = os.open(self._path.with_name(f"{self._path.name}.{name}.lock"), os.O_CREAT | os.O_RDWR, 0o600)
        try:
            yield (lambda: True) if lock_descriptor(lock, blocking=False) else None
        finally:
            os.close(lock)

    def _open(self, patience: float = PATIENCE) -> sqlite3.Connection:
        return sqlite3.connect(self._path, timeout=patience)


class _Connection:
    """A `Connection` to the file."""

    def __init__(self, db: sqlite3.Connection, name: str) -> None:
        self._db, self._name = db, name

    def execute(self, query: str, values: Sequence[Any] = (), /) -> sqlite3.Cursor:
        return self._db.execute(query, values)

    def executemany(self, query: str, rows: Iterable[Sequence[Any]], /) -> None:
        self._db.executemany(query, rows)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        with _errors(self._name):
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            finally:
                if self._db.in_transaction:
                    self._db.rollback()


@contextmanager
def _errors(name: str) -> Iterator[None]:
    """Makes StoreUnavailables of errors that every other record would meet as well: a full disk, a lock."""
    try:
        yield
    except sqlite3.Error as error:
        if type(error) in (sqlite3.OperationalError, sqlite3.DatabaseError, sqlite3.InternalError):
            raise StoreUnavailable(name, str(error)) from error
        raise
