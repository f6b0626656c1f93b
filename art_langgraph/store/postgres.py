"""A trajectory store in a PostgreSQL database. Needs psycopg: `pip install 'art-langgraph[postgres]'`.

The tables are in a schema of their own, so that the database may be that of the server's ledger.
"""

from __future__ import annotations

import os
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeAlias

import psycopg
from psycopg.conninfo import conninfo_to_dict

from art_langgraph.store.database import FIRST_TABLES, PATIENCE, TUNINGS, StoreUnavailable
from trainer_server.common.postgres_files import rewrite
from trainer_server.wire import ConfigError
from trainer_server.wire.errors import NewerSchema
from trainer_server.wire.text import storable

_Db: TypeAlias = psycopg.Connection[tuple[Any, ...]]

_SCHEMA = "art_langgraph_store"
_FIRST_TABLES = (
    FIRST_TABLES.format(
        text='TEXT COLLATE "C"',
        real="DOUBLE PRECISION",
        rowid="rowid BIGINT GENERATED ALWAYS AS IDENTITY UNIQUE, ",
        strict="",
        by_hash="USING hash ",
    )
    + """
CREATE INDEX IF NOT EXISTS steps_trajectory ON steps (trajectory);
ALTER TABLE trajectories ALTER COLUMN error SET STATISTICS 0, ALTER COLUMN record SET STATISTICS 0;
ALTER TABLE begun ALTER COLUMN record SET STATISTICS 0;
ALTER TABLE completions ALTER COLUMN record SET STATISTICS 0;
ALTER TABLE scores ALTER COLUMN record SET STATISTICS 0;
"""
)
"""Without statistics, the planner's catalogue has no texts of runs, which `overwrite` could not delete. A hash index
takes texts of any length."""
_WRITE_LOCK = """
CREATE TABLE write_lock ();
ALTER TABLE trajectories
    ALTER COLUMN scenario TYPE TEXT COLLATE "C", ALTER COLUMN graph TYPE TEXT COLLATE "C",
    ALTER COLUMN thread TYPE TEXT COLLATE "C";
ALTER TABLE trajectories
    ALTER COLUMN scenario SET STATISTICS 0, ALTER COLUMN graph SET STATISTICS 0, ALTER COLUMN thread SET STATISTICS 0;
"""
"""`write_lock` is empty: a process that writes locks it, so that rows are numbered in the order of their commits. A
table with rows would not be vacuumed by itself while processes write. A change of type, to the same one, drops
statistics."""
_MIGRATIONS = (_FIRST_TABLES, _WRITE_LOCK, TUNINGS.format(text='TEXT COLLATE "C"', strict=""))
"""The changes of the tables, oldest first. To change tables, add one at the end; never change one that was released."""
_WITH_TEXTS = ("trajectories", "begun", "completions", "resumed", "scores", "steps", "evaluations")

_CONNECT = 10.0
"""Seconds until a database that does not answer is an error."""
_MOST_IDLE = 4
"""Connections that stay open for the next use."""
_KEEPALIVES: dict[str, Any] = {
    "keepalives": 1,
    "keepalives_idle": 5,
    "keepalives_interval": 5,
    "keepalives_count": 4,
    "tcp_user_timeout": 25_000,
}
"""A database that cannot be reached any more is noticed after about 25 seconds."""
_MIGRATING = 0x6172_7411
"""Key of the advisory lock that is held while tables are made."""
_ALONE = 0x6172_7413
"""First key of the advisory locks of `alone`."""
_SESSION = f"""
SET search_path TO {_SCHEMA};
SET default_transaction_isolation TO 'read committed';
SET idle_in_transaction_session_timeout TO '5min';
SET idle_session_timeout TO 0;
SET statement_timeout TO 0;
SET client_min_messages TO 'warning';
SET tcp_keepalives_idle TO 5;
SET tcp_keepalives_interval TO 5;
SET tcp_keepalives_count TO 4;
SET tcp_user_timeout TO 25000;
SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off';
"""
"""Settings of a connection, whatever the database, the role or the address set. A commit is on disk when it returns. A
process that stops in the middle of a transaction holds others up for five minutes at most, and one that cannot be
reached any more for about 25 seconds."""
_BEFORE_USE = """
SELECT set_config('lock_timeout', %s, false), has_table_privilege(to_regclass('write_lock'), 'UPDATE')
"""
"""The lock is looked up, so that its name is in the connection's cache. A `LOCK TABLE` that reads the catalogue first
has a snapshot of it while it waits, and `overwrite` could not remove what that sees."""
_databases: weakref.WeakSet[PostgresDatabase] = weakref.WeakSet()
"""All databases of this process, for a fork."""


class PostgresDatabase:
    """A PostgreSQL database as a `Database`.

    Args:
        url: `postgresql://…`, as libpq reads it.

    Raises:
        ConfigError: The address cannot be read, the database cannot be reached, its tables cannot be made, or a newer
            release made them (NewerSchema).
    """

    record_size = "pg_column_size(record)"

    def __init__(self, url: str) -> None:
        self.name, self._url = describe_address(url), url
        self._lock = threading.Lock()
        self._idle: list[_Db] = []
        _databases.add(self)
        weakref.finalize(self, _close, self._idle)
        with self.connect() as db:
            _bring_up(db.db, self.name)

    def texts(self, array: str) -> str:
        return f"(SELECT value FROM json_array_elements_text(CAST({array} AS json)) AS texts(value))"

    @contextmanager
    def connect(self, patience: float = PATIENCE) -> Iterator[_Connection]:
        with _errors(self.name):
            db, process = self._take(), os.getpid()
            try:
                db.execute(_BEFORE_USE, (f"{max(1, int(patience * 1000))}ms",))
                yield _Connection(db, self.name)
            except BaseException:
                if process == os.getpid():
                    db.close()
                raise
            if process == os.getpid():  # else it is the parent's
                self._keep(db)

    def overwrite(self) -> None:
        with self.connect() as db:
            rest = rewrite(db.db, _WITH_TEXTS)
        if rest:
            reasons = "; ".join(f"{table}: {why}" for table, why in rest.items())
            tables = ", ".join(f"{_SCHEMA}.{table}" for table in rest)
            raise StoreUnavailable(
                self.name,
                f"the runs are deleted, but not yet from all files. {reasons}; when that has ended, run VACUUM (FULL) "
                f"{tables}",
            )

    @contextmanager
    def alone(self, name: str) -> Iterator[Callable[[], bool] | None]:
        with _errors(self.name):
            db, process = self._connect(), os.getpid()
        try:
            with _errors(self.name):
                query = "SELECT pg_try_advisory_lock(%s, hashtext(%s))"
                (is_holder,) = db.execute(query, (_ALONE, name)).fetchone() or (False,)
            yield (lambda: _answers(db)) if is_holder else None
        finally:
            if process == os.getpid():
                db.close()

    def reset_after_fork(self) -> None:
        """Leaves its connections to the parent process: this one is a child of it."""
        self._lock = threading.Lock()  # a thread of the parent may have held the other one
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # psycopg's, of connections that are not closed
            for db in self._idle:
                with suppress(psycopg.Error, OSError):
                    os.close(db.fileno())  # `db.close()` would end the parent's session
            self._idle.clear()

    def _take(self) -> _Db:
        """An idle connection that still answers, or a new one."""
        with self._lock:
            db = self._idle.pop() if self._idle else None
        if db is None:
            return self._connect()
        if _answers(db):
            return db
        db.close()
        return self._take()  # the database has restarted: the others are of no use either

    def _keep(self, db: _Db) -> None:
        with self._lock:
            if len(self._idle) < _MOST_IDLE:
                self._idle.append(db)
                return
        db.close()

    def _connect(self) -> _Db:
        db = psycopg.connect(
            self._url, autocommit=True, connect_timeout=int(_CONNECT), client_encoding="utf8", **_KEEPALIVES
        )
        try:
            db.execute(_SESSION)
        except BaseException:
            db.close()
            raise
        return db


class _Connection:
    """A `Connection` to the database. `?` stands for a value, which is `%s` to psycopg."""

    def __init__(self, db: _Db, name: str) -> None:
        self.db, self._name = db, name

    def execute(self, query: str, values: Sequence[Any] = (), /) -> Any:
        return self.db.execute(_convert_placeholders(query), _storable(values))

    def executemany(self, query: str, rows: Iterable[Sequence[Any]], /) -> None:
        with self.db.cursor() as cursor:
            cursor.executemany(_convert_placeholders(query), [_storable(row) for row in rows])

    @contextmanager
    def transaction(self) -> Iterator[None]:
        with _errors(self._name), self.db.transaction():
            self.db.execute("LOCK TABLE write_lock IN EXCLUSIVE MODE")  # unlike a SELECT, it waits without a snapshot
            yield


@contextmanager
def _errors(name: str) -> Iterator[None]:
    """Makes StoreUnavailables of errors that every other record would meet as well: no connection, a full disk."""
    try:
        yield
    except (psycopg.DataError, psycopg.IntegrityError, psycopg.errors.ProgramLimitExceeded):
        raise
    except psycopg.Error as error:
        lines = str(error).strip().splitlines()
        raise StoreUnavailable(name, lines[0] if lines else type(error).__name__) from error


def describe_address(url: str) -> str:
    """A database as messages name it: without user, password and options.

    Raises:
        ConfigError: The address cannot be read.
    """
    try:
        parts = {name: str(value) for name, value in conninfo_to_dict(url).items() if value is not None}
    except psycopg.ProgrammingError:  # its message quotes parts of the address
        parts = {"port": "none"}
    name = parts.get("dbname") or os.environ.get("PGDATABASE") or parts.get("user") or ""
    host = parts.get("host") or parts.get("hostaddr") or os.environ.get("PGHOST") or "localhost"
    port = parts.get("port") or os.environ.get("PGPORT") or "5432"
    # Where a password has a character that is not escaped, libpq takes what follows it for host, port or name.
    if not port.replace(",", "").isdecimal() or "@" in host or {"@", "/"} & set(name):
        raise ConfigError(
            "the trajectory store postgresql://…: this is no address of a database: write "
            "postgresql://USER@HOST:PORT/DATABASE, with characters such as / @ : # in user or password escaped (%2F "
            "%40 %3A %23)"
        )
    return f"postgresql://{host}:{port}/{name}"


def _convert_placeholders(query: str) -> Any:
    return query.replace("%", "%%").replace("?", "%s")


def _storable(values: Sequence[Any]) -> list[Any]:
    return [storable(value) if isinstance(value, str) else value for value in values]


def _close(connections: list[_Db]) -> None:
    while connections:
        connections.pop().close()


def _reset_after_fork() -> None:
    for database in list(_databases):
        database.reset_after_fork()


if sys.platform != "win32":  # which has no fork
    os.register_at_fork(after_in_child=_reset_after_fork)


def _answers(db: _Db) -> bool:
    with suppress(psycopg.Error):
        db.execute("SELECT 1")
        return True
    return False


def _bring_up(db: _Db, name: str) -> None:
    """Brings tables to those of this release, in one transaction. Several processes may do so at once."""
    (encoding,) = db.execute("SELECT current_setting('server_encoding')").fetchone() or ("",)
    if encoding != "UTF8":
        raise StoreUnavailable(name, f"it has the encoding {encoding}: create one with ENCODING 'UTF8'")
    if _number(db, name) == len(_MIGRATIONS):
        return
    with db.transaction():
        db.execute("SELECT pg_advisory_xact_lock(%s)", (_MIGRATING,))
        db.execute(f"CREATE SCHEMA IF NOT EXISTS {_SCHEMA}")
        db.execute("CREATE TABLE IF NOT EXISTS schema_number (number INTEGER NOT NULL)")
        for migration in _MIGRATIONS[_number(db, name) :]:  # another process may have done it meanwhile
            db.execute(migration)
        db.execute("DELETE FROM schema_number")
        db.execute("INSERT INTO schema_number VALUES (%s)", (len(_MIGRATIONS),))


def _number(db: _Db, name: str) -> int:
    """The schema number of the tables; 0: there are none. Raises NewerSchema."""
    row = db.execute("SELECT to_regclass(%s)", (f"{_SCHEMA}.schema_number",)).fetchone()
    if row is None or row[0] is None:
        return 0
    row = db.execute("SELECT number FROM schema_number").fetchone()
    number = int(row[0]) if row else 0
    if number > len(_MIGRATIONS):
        raise NewerSchema(f"the trajectory store {name}", number, len(_MIGRATIONS))
    return number
