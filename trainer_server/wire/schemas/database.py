"""Schema numbers of SQLite files. SQLite keeps the number of a file in its header (`PRAGMA user_version`)."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from trainer_server.wire.errors import NewerSchema

log = logging.getLogger(__name__)

Migration = Callable[[sqlite3.Connection], None]
"""Changes the tables of a file from one number to the next. It runs in a transaction, and must not end it."""


class DatabaseSchema:
    """The tables of a SQLite file, as a list of changes: a file with the number n has had the first n of them.

    Files of the first release have no number (0), like new files. So the first migration makes the tables of that
    release where they are not there. To change tables, add a migration at the end; never change one that was released.

    Args:
        *migrations: The changes, oldest first.
    """

    def __init__(self, *migrations: Migration) -> None:
        self._migrations = migrations

    @property
    def number(self) -> int:
        """The number of this release."""
        return len(self._migrations)

    def bring_up(self, db: sqlite3.Connection, path: Path) -> None:
        """Brings a file to the tables of this release, in one transaction, and into WAL mode.

        Several processes may do so at once. A file that is there already is only looked at.

        Args:
            db: A connection to the file, without a transaction.
            path: The file, for messages.

        Raises:
            NewerSchema: A newer release wrote the file. It stays as it is.
            sqlite3.Error: The file cannot be read or written. Its tables stay as they are.
        """
        missing = self._missing(db, path)
        db.execute("PRAGMA journal_mode=WAL")
        if not missing:
            return
        if len(missing) < self.number:
            log.info("%s: the tables of an earlier release are brought up to schema %d", path, self.number)
        db.execute("BEGIN IMMEDIATE")
        with db:
            for migration in self._missing(db, path):  # another process may have done it meanwhile
                migration(db)
            db.execute(f"PRAGMA user_version = {self.number}")

    def _missing(self, db: sqlite3.Connection, path: Path) -> Sequence[Migration]:
        (schema,) = db.execute("PRAGMA user_version").fetchone()
        if schema > self.number:
            raise NewerSchema(path, schema, self.number)
        return self._migrations[schema:]


def script(text: str) -> Migration:
    """A migration that executes SQL statements."""

    def migrate(db: sqlite3.Connection) -> None:
        for statement in _statements(text):  # `executescript` would end the transaction
            db.execute(statement)

    return migrate


def _statements(text: str) -> Iterator[str]:
    statement = ""
    for line in text.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
    if statement.strip():
        raise ValueError(f"this statement has no end: {statement}")
