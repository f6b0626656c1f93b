"""Schema numbers of files, and the migrations that bring files of earlier releases up to this one.

SQLite keeps the number of a file in its header (`PRAGMA user_version`). JSON files have it in the field `schema`.
"""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

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


RecordMigration = Callable[[dict[str, Any]], dict[str, Any]]
"""Makes the record of one number of the record of the number before."""

_FIELD = "schema"


class RecordSchema:
    """The form of JSON files that do not change once they are written: an earlier form is changed when it is read.

    A record with the number n has had the first n changes. Records of the first release have no number (0). To change
    the form, add a migration at the end; never change one that was released.

    Args:
        *migrations: The changes, oldest first.
    """

    def __init__(self, *migrations: RecordMigration) -> None:
        self._migrations = migrations

    @property
    def number(self) -> int:
        """The number of this release."""
        return len(self._migrations)

    def to_text(self, record: BaseModel) -> str:
        """A record with its number, as JSON."""
        return json.dumps({_FIELD: self.number, **json.loads(record.model_dump_json())}, indent=2)

    def from_text(self, text: str, path: Path) -> dict[str, Any]:
        """The record of a file, in the form of this release.

        Args:
            text: Content of the file.
            path: The file, for messages.

        Raises:
            NewerSchema: A newer release wrote the file.
            ValueError: The text is no JSON object, or its number is none.
        """
        record: dict[str, Any] = json.loads(text)
        if not isinstance(record, dict):
            raise ValueError("it is no JSON object")
        schema = record.pop(_FIELD, 0)
        if not isinstance(schema, int) or schema < 0:
            raise ValueError(f"its schema is {schema!r}, which is no number")
        if schema > self.number:
            raise NewerSchema(path, schema, self.number)
        for migration in self._migrations[schema:]:
            record = migration(record)
        return record
