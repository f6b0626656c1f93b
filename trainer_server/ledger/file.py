"""A SQLite file beside the ledger: each use has a connection of its own, and what is committed survives a crash."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from trainer_server.ledger.base import LedgerError
from trainer_server.wire.home import create_private


class LedgerFile:
    """A file with tables. Any thread may use it; this process is the only writer.

    `lock` is for those who write, or read and then write.

    Args:
        path: The file. It is created if it does not exist.
        content: What its tables have, for messages.
        schema: Statements that make the tables where they are not there.

    Raises:
        LedgerError: The file cannot be made or opened.
    """

    def __init__(self, path: Path, content: str, schema: str) -> None:
        self._path, self._content = path, content
        self.lock = threading.Lock()
        try:
            create_private(path)
        except OSError as error:
            raise LedgerError(f"the {content} at {path} cannot be opened: {error}") from error
        with self.opened() as db:
            db.execute("PRAGMA journal_mode=WAL")
            db.executescript(schema)

    @contextmanager
    def opened(self) -> Iterator[sqlite3.Connection]:
        """A connection, closed at the end of the block. Raises LedgerError if the file cannot be read or written."""
        try:
            with closing(sqlite3.connect(self._path, timeout=30)) as db:
                db.execute("PRAGMA synchronous=FULL")
                yield db
        except sqlite3.Error as error:
            raise LedgerError(f"the {self._content} in {self._path} cannot be read or written: {error}") from error
