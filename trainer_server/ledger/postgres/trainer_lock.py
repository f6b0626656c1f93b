"""Which server trains on a database: the one whose connection holds an advisory lock of it.

PostgreSQL gives the lock to one connection, and takes it back when that ends: with its server, or with the network
between. Trainer process and jobs belong to the server that trains, so there is exactly one of each, and one server that
decides what policies' names mean.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable

import psycopg

from trainer_server.ledger.base import LedgerError
from trainer_server.ledger.postgres.database import Database, Db, reason

log = logging.getLogger("trainer_server")

_MIGRATIONS = [
    "CREATE TABLE elected (name TEXT NOT NULL, since DOUBLE PRECISION NOT NULL);",
    "ALTER TABLE elected ADD COLUMN url TEXT;",  # of an earlier release; nothing reads it
]
_LOCK = 0x6172_7403
"""Key of the advisory lock."""
_POLL_INTERVAL = 1.0
"""Seconds between two looks at the lock."""
_SESSION = """
SET tcp_keepalives_idle TO 5;
SET tcp_keepalives_interval TO 5;
SET tcp_keepalives_count TO 4;
SET tcp_user_timeout TO 25000;
"""
"""PostgreSQL takes the lock from a server that cannot be reached any more after about 25 seconds."""
_TERM = 15.0
"""Seconds without a word from the database after which a server trains no more: before another one can."""


class TrainerLock:
    """The right to train on a database.

    Args:
        url: `postgresql://…`, as libpq reads it.
        home: The server's home, for messages.

    Attributes:
        label: The database as messages name it.
        loss: Why this server has lost the lock; None: it has not.

    Raises:
        ConfigError, LedgerError, NewerSchema: The database cannot be used; `Database` says why.
    """

    def __init__(self, url: str, home: str) -> None:
        self._database = Database(url, "fleet", _MIGRATIONS)
        self.label = self._database.label
        self.loss: str | None = None
        self._name = f"process {os.getpid()} on {socket.gethostname()}, home {home}"
        self._db: Db | None = None
        self._end = threading.Event()
        self._watch: threading.Thread | None = None

    def acquire(self) -> bool:
        """Whether this server has the lock from now on: no other one has it. Raises LedgerError."""
        with self._database.errors("asked which server trains"):
            return self._acquire()

    def holder(self) -> str:
        """Names the server that took the lock last. Raises LedgerError."""
        with self._database.connection("asked which server trains") as db:
            row = db.execute("SELECT name FROM elected").fetchone()
        return str(row[0]) if row else "another server"

    def watch(self, on_loss: Callable[[], None]) -> None:
        """Looks from now on whether this server still has the lock, and takes it again after the database was away.

        Args:
            on_loss: Called once, on a thread, when the lock is lost; `loss` says why.
        """
        self._watch = threading.Thread(target=self._watch_lock, args=(on_loss,), name="trainer lock", daemon=True)
        self._watch.start()

    def release(self) -> None:
        """Another server can train from now on."""
        self._end.set()
        if self._watch is not None:
            self._watch.join()
        self._drop()
        self._database.close()

    def _watch_lock(self, on_loss: Callable[[], None]) -> None:
        last_answer = time.monotonic()
        while self.loss is None and not self._end.wait(_POLL_INTERVAL):
            try:
                if self._db is not None:
                    self._db.execute("SELECT 1")
                elif self._acquire():
                    log.warning("%s is back, and this server still trains", self.label)
                else:
                    self.loss = f"another server trains since {self.label} was away: {self.holder()}"
                last_answer = time.monotonic()
            except (psycopg.Error, LedgerError) as error:
                self._drop()
                if time.monotonic() - last_answer > _TERM:
                    why = reason(error) if isinstance(error, psycopg.Error) else str(error)
                    self.loss = f"{self.label} was away for {_TERM:.0f} s, and another server may train: {why}"
        if self.loss is not None:
            log.error("stopping: %s", self.loss)
            on_loss()

    def _acquire(self) -> bool:
        try:
            if self._db is None:
                self._db = self._database.connect()
                self._db.execute(_SESSION)
            row = self._db.execute("SELECT pg_try_advisory_lock(%s)", (_LOCK,)).fetchone()
            if row is None or not row[0]:
                self._drop()
                return False
            with self._db.transaction():
                self._db.execute("DELETE FROM elected")
                self._db.execute("INSERT INTO elected VALUES (%s, %s)", (self._name, time.time()))
        except psycopg.Error:
            self._drop()
            raise
        return True

    def _drop(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None
