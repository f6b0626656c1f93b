"""Which server of a fleet serves: the one whose connection holds an advisory lock of the database.

PostgreSQL gives the lock to one connection, and takes it back when that ends: with its server, or with the network
between. Trainer and jobs belong to the elected server, so there is exactly one of each, and it decides what policies'
names mean.
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

_FIRST = "CREATE TABLE elected (name TEXT NOT NULL, since DOUBLE PRECISION NOT NULL);"
_ADDRESS = "ALTER TABLE elected ADD COLUMN url TEXT;"
_LOCK = 0x6172_7403
"""Key of the advisory lock that the elected server holds."""
_POLL_INTERVAL = 1.0
"""Seconds between two looks at the lock."""
_SESSION = """
SET tcp_keepalives_idle TO 5;
SET tcp_keepalives_interval TO 5;
SET tcp_keepalives_count TO 4;
SET tcp_user_timeout TO 25000;
"""
"""PostgreSQL takes the lock from a server that cannot be reached any more after about 25 seconds."""
_LEFT = 5.0
"""Seconds after a start of the database that are left to the server that was elected."""
_TERM = 15.0
"""Seconds without a word from the database after which a server is not elected any more: before another one can be."""


class Election:
    """The election of one server.

    Args:
        url: `postgresql://…`, as libpq reads it.
        home: The server's home, for messages.

    Raises:
        ConfigError, LedgerError, NewerSchema: See `Database`.
    """

    def __init__(self, url: str, home: str) -> None:
        self._database = Database(url, "fleet", [_FIRST, _ADDRESS])
        self._name = f"process {os.getpid()} on {socket.gethostname()}, home {home}"
        self._url: str | None = None
        self._db: Db | None = None
        self._ended = threading.Event()
        self._watch: threading.Thread | None = None

    @property
    def label(self) -> str:
        """The database as messages name it."""
        return self._database.label

    def stand(self, *, patient: bool = False) -> bool:
        """Tries to be elected. Raises LedgerError if the database cannot be asked.

        Args:
            patient: Whether to leave the first seconds after a start of the database to the server that was elected.
        """
        with self._database.errors("asked which server is elected"):
            return self._stand(patient)

    def leader_name(self) -> str:
        """Names the server that was elected last. Raises LedgerError."""
        with self._database.connection("asked which server is elected") as db:
            row = db.execute("SELECT name FROM elected").fetchone()
        return str(row[0]) if row else "another server"

    def announce(self, url: str) -> None:
        """Tells the other servers where this one is reached, from now on. Raises LedgerError."""
        self._url = url
        with self._database.connection("told where the elected server is reached") as db:
            db.execute("UPDATE elected SET url = %s WHERE name = %s", (url, self._name))

    def address(self) -> str | None:
        """Where the server is reached that was elected last; None: it did not tell. Raises LedgerError."""
        with self._database.connection("asked which server is elected") as db:
            row = db.execute("SELECT url FROM elected").fetchone()
        return row[0] if row else None

    def local_host(self) -> str:
        """The address of this machine from which it reaches the database, or its name. Raises LedgerError."""
        with self._database.connection("reached") as db, socket.socket(fileno=os.dup(db.fileno())) as connection:
            if connection.family == socket.AF_UNIX:
                return socket.gethostname()
            return str(connection.getsockname()[0])

    def wait(self) -> None:
        """Returns when this server is elected, however long that takes."""
        problem = ""
        while True:
            try:
                if self.stand(patient=True):
                    return
                problem = ""
            except LedgerError as error:
                if str(error) != problem:  # the same problem is logged once
                    log.warning("%s", error)
                problem = str(error)
            time.sleep(_POLL_INTERVAL)

    def watch(self, on_loss: Callable[[str], None]) -> None:
        """Looks from now on whether this server is still elected.

        Args:
            on_loss: Called once, on a thread, with the reason, when it is not.
        """
        self._watch = threading.Thread(target=self._watch_election, args=(on_loss,), name="election", daemon=True)
        self._watch.start()

    def resign(self) -> None:
        """Another server can be elected from now on."""
        self._ended.set()
        if self._watch is not None:
            self._watch.join()
        self._drop()
        self._database.close()

    def _watch_election(self, on_loss: Callable[[str], None]) -> None:
        heard = time.monotonic()
        while not self._ended.wait(_POLL_INTERVAL):
            try:
                if self._db is None:
                    if not self._stand():
                        on_loss(f"another server was elected while {self.label} was away: {self.leader_name()}")
                        return
                    log.warning("%s is back, and this server is elected still", self.label)
                else:
                    self._db.execute("SELECT 1")
                heard = time.monotonic()
            except (psycopg.Error, LedgerError) as error:
                self._drop()
                if time.monotonic() - heard > _TERM:
                    why = reason(error) if isinstance(error, psycopg.Error) else str(error)
                    on_loss(f"{self.label} was away for {_TERM:.0f} s, and another server may be elected: {why}")
                    return

    def _stand(self, patient: bool = False) -> bool:
        if self._db is None:
            self._db = self._database.connect()
            self._db.execute(_SESSION)
        try:
            old = f"pg_postmaster_start_time() < clock_timestamp() - interval '{_LEFT:g} s'" if patient else "true"
            row = self._db.execute(f"SELECT {old} AND pg_try_advisory_lock(%s)", (_LOCK,)).fetchone()
            if row is None or not row[0]:
                self._drop()
                return False
            with self._db.transaction():
                self._db.execute("DELETE FROM elected")
                self._db.execute("INSERT INTO elected VALUES (%s, %s, %s)", (self._name, time.time(), self._url))
        except psycopg.Error:
            self._drop()
            raise
        return True

    def _drop(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None
