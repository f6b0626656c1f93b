"""A PostgreSQL database: its address without secrets, connections, and the tables of this release.

All tables are in the schema `art_langgraph`. Several servers may use a database at once; they are then one fleet.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg_pool import ConnectionPool

from trainer_server.common.postgres_files import rewrite
from trainer_server.ledger.base import LedgerError
from trainer_server.wire import ConfigError
from trainer_server.wire.errors import NewerSchema

T = TypeVar("T")
Db = psycopg.Connection[tuple[Any, ...]]

SCHEMA = "art_langgraph"
_CONNECTIONS = 8
"""Most connections of a pool."""
_WAIT = 10.0
"""Seconds until a database that does not answer is an error."""
_SESSION = f"""
SET search_path TO {SCHEMA};
SET default_transaction_isolation TO 'read committed';
SET lock_timeout TO '30s';
SET idle_in_transaction_session_timeout TO '30s';
SET client_min_messages TO 'warning';
SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off';
SELECT has_table_privilege(to_regclass('books_lock'), 'UPDATE');
"""
"""Settings of a connection, whatever the database, the role or the address set. A commit is on disk when it returns. A
server that stops in the middle of a transaction holds others up for 30 seconds at most. The lock of the books is looked
up: a `LOCK TABLE` that reads the catalogue first has a snapshot of it while it waits, and `overwrite` could not remove
what that sees."""
_PORTS = re.compile(r"[0-9]*(,[0-9]*)*")
"""A port, or one for each of several hosts."""
_THREADS = 8
"""Transactions at once: as many as a pool has connections."""
_PATIENCE = 15.0
"""Seconds for which a transaction is tried again while the database is not there, as when it restarts."""
_PAUSE = 0.2
"""Seconds between tries."""
_MIGRATING = 0x6172_7401
"""Key of the advisory lock that is held while tables are made."""


def database_label(url: str) -> str:
    """A database as messages name it: without user, password and options.

    Raises:
        ConfigError: The address cannot be read.
    """
    try:
        parts = {name: str(value) for name, value in conninfo_to_dict(url).items() if value is not None}
    except psycopg.ProgrammingError:  # its message quotes parts of the address
        parts = {"port": "none"}
    name = parts.get("dbname") or os.environ.get("PGDATABASE") or parts.get("user") or "of the user's name"
    host = parts.get("host") or parts.get("hostaddr") or os.environ.get("PGHOST") or "the local socket"
    port = parts.get("port") or os.environ.get("PGPORT") or "5432"
    # Where a password has a character that is not escaped, libpq takes what follows it for host, port or name.
    if not _PORTS.fullmatch(port) or "@" in host or {"@", "/"} & set(name):
        raise ConfigError(
            "--ledger postgresql://…: this is no address of a database: write postgresql://USER@HOST:PORT/DATABASE, "
            "with characters such as / @ : # in user or password escaped (%2F %40 %3A %23)"
        )
    return f"the PostgreSQL database {name} on {host}:{port}"


class Database:
    """Connections to a database. Any thread may call it.

    Args:
        url: `postgresql://…`, as libpq reads it.
        part: Names the tables that are used, for their schema number.
        migrations: The changes of these tables, oldest first. To change tables, add one at the end; never change one
            that was released.

    Attributes:
        shown: The database as messages name it.

    Raises:
        ConfigError: The address cannot be read.
        LedgerError: The database cannot be reached, or its tables cannot be made.
        NewerSchema: A newer release made its tables.
    """

    def __init__(self, url: str, part: str, migrations: Sequence[str]) -> None:
        self.label = database_label(url)
        self._url = url
        with self.errors("opened"), self.connect() as db:
            _bring_up(db, part, migrations, self.label)
        self._pool = ConnectionPool(
            url,
            kwargs={"autocommit": True, "connect_timeout": int(_WAIT), "client_encoding": "utf8"},
            configure=_configure,
            check=ConnectionPool.check_connection,
            min_size=0,
            max_size=_CONNECTIONS,
            timeout=_WAIT,
            open=True,
        )

    def connect(self) -> Db:
        """A connection of the caller's own, in autocommit mode. Raises psycopg.Error."""
        db = psycopg.connect(self._url, autocommit=True, connect_timeout=int(_WAIT), client_encoding="utf8")
        try:
            _configure(db)
        except BaseException:
            db.close()
            raise
        return db

    @contextmanager
    def connection(self, action: str = "read or written") -> Iterator[Db]:
        """A connection, in use by nobody else until the block ends. Raises LedgerError if the database fails.

        Args:
            action: What is done with the database, for the message.
        """
        with self.errors(action), self._pool.connection() as db:
            yield db

    @contextmanager
    def errors(self, action: str) -> Iterator[None]:
        """Makes LedgerErrors of those of the database."""
        try:
            yield
        except psycopg.Error as error:
            raise LedgerError(f"{self.label} cannot be {action}: {reason(error)}") from error

    def overwrite(self, *tables: str) -> None:
        """Leaves nothing of what was deleted in the files of tables, which are written anew.

        Raises:
            LedgerError: The database fails, or another transaction still sees what was deleted.
        """
        with self.connection("changed; ask again") as db:
            obstacles = rewrite(db, tables)
        if obstacles:
            reasons = "; ".join(f"{table}: {why}" for table, why in obstacles.items())
            raise LedgerError(
                f"what was deleted is not yet gone from all files of {self.label}. {reasons}. Ask again when that has "
                "ended"
            )

    def close(self) -> None:
        """Closes the connections."""
        self._pool.close()


class AsyncTransactions:
    """Runs transactions on threads of its own: those that wait for a database must not keep files from being read.

    Args:
        url: `postgresql://…`, as libpq reads it.
        part: Names the tables that are used, for their schema number.
        migrations: The changes of these tables, oldest first.

    Raises:
        ConfigError, LedgerError, NewerSchema: The database cannot be used; `Database` says why.
    """

    def __init__(self, url: str, part: str, migrations: Sequence[str]) -> None:
        self._database = Database(url, part, migrations)
        self._threads = ThreadPoolExecutor(_THREADS, part)
        self._closed = False

    async def run(self, work: Callable[[Db], T]) -> T:
        """What `work` returns, which is one transaction. It may be run again after a failure of which nobody knows
        whether it was committed.

        Raises:
            LedgerError: The database does not answer, or refuses.
        """
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._run, work)

    def close(self) -> None:
        """Frees its resources. Transactions that are tried again and again end."""
        self._closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._database.close()

    def _run(self, work: Callable[[Db], T]) -> T:
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                with self._database.connection("asked") as db, db.transaction():
                    return work(db)
            except LedgerError as error:
                cause = error.__cause__
                away = isinstance(cause, psycopg.Error) and is_away(cause)
                if self._closed or not away or time.monotonic() > deadline:
                    raise
            time.sleep(_PAUSE)


def reason(error: psycopg.Error) -> str:
    """What went wrong, in one line."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def is_away(error: psycopg.Error) -> bool:
    """Whether an error says that the database is not there, or cannot write now, which may pass: it restarts, or
    another machine takes over."""
    passing = psycopg.errors.AdminShutdown, psycopg.errors.CrashShutdown, psycopg.errors.CannotConnectNow
    if isinstance(error, (*passing, psycopg.errors.ReadOnlySqlTransaction, psycopg.InterfaceError)):
        return True
    return isinstance(error, psycopg.OperationalError) and (error.sqlstate or "08").startswith("08")


def _configure(db: Db) -> None:
    db.execute(_SESSION)


def _bring_up(db: Db, part: str, migrations: Sequence[str], name: str) -> None:
    """Brings tables to those of this release, in one transaction. Several servers may do so at once."""
    (encoding,) = db.execute("SELECT current_setting('server_encoding')").fetchone() or ("",)
    if encoding != "UTF8":
        raise LedgerError(f"{name} has the encoding {encoding}: create one with ENCODING 'UTF8' TEMPLATE template0")
    if (number := _number(db, part)) > len(migrations):
        raise NewerSchema(f"the {part} in {name}", number, len(migrations))
    if number == len(migrations):
        return
    with db.transaction():
        db.execute("SELECT pg_advisory_xact_lock(%s)", (_MIGRATING,))
        db.execute(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}")
        db.execute("CREATE TABLE IF NOT EXISTS schemas (part TEXT PRIMARY KEY, number INTEGER NOT NULL)")
        for migration in migrations[_number(db, part) :]:  # another server may have done it meanwhile
            db.execute(migration)
        query = "INSERT INTO schemas VALUES (%s, %s) ON CONFLICT (part) DO UPDATE SET number = excluded.number"
        db.execute(query, (part, len(migrations)))


def _number(db: Db, part: str) -> int:
    """The schema number of tables; 0: there are none."""
    row = db.execute("SELECT to_regclass(%s)", (f"{SCHEMA}.schemas",)).fetchone()
    if row is None or row[0] is None:
        return 0
    row = db.execute("SELECT number FROM schemas WHERE part = %s", (part,)).fetchone()
    return int(row[0]) if row else 0
