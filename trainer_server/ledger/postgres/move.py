"""Moves the ledger and the books of a home from SQLite to PostgreSQL.

Rows are copied some at a time. Each transaction also writes down how far it came, so that a move that was broken off
goes on there. Places and numbers of rows stay as they are, so that what refers to them does. At the end all rows are
read on both sides and compared; only then the files get other names.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer_server.common import Home
from trainer_server.common.jsonl import from_json
from trainer_server.ledger.postgres.books import PostgresBooks
from trainer_server.ledger.postgres.database import Database, Db
from trainer_server.ledger.postgres.ledger import PostgresLedger, columns_of
from trainer_server.ledger.sqlite import SQLiteBooks, SQLiteLedger
from trainer_server.wire import Completion, ConfigError
from trainer_server.wire.text import storable

_MOVES = """
CREATE TABLE moves (
    source TEXT NOT NULL, rows_of TEXT NOT NULL, place BIGINT NOT NULL, moved BIGINT NOT NULL,
    PRIMARY KEY (source, rows_of)
);
"""
_BATCH = 500
_SUFFIX = ".moved"
"""End of the names that the files get."""

ReportProgress = Callable[[str, int, int], None]
"""Called with a table, how many of its rows are done, and how many there are."""


@dataclass(frozen=True, slots=True)
class _Table:
    name: str
    columns: tuple[str, ...]
    place: str = "rowid"
    """The column of SQLite by whose order rows are read."""
    number_column: str | None = None
    """The column of PostgreSQL that numbers new rows."""


_RUN = (
    "number id started changed seconds trajectory policy version several scenario reward rewarded_by failed evaluation "
    "traced graph calls tokens"
)
_COMPLETIONS = _Table("completions", ("rowid", "id", "record"))
_BOOKS = (
    _Table("rollouts", ("number", "id", "created", "changed", "spec", "owner"), "number", "number"),
    _Table("rewards", ("rowid", "rollout", "record"), "rowid", "rowid"),
    _Table("policies", ("rollout", "policy")),
    _Table("runs", tuple(_RUN.split()), "number", "number"),
    _Table("run_texts", ("rowid", "text")),
    _Table("run_versions", ("run", "policy", "version", "recorded"), ""),
    _Table("run_traces", ("run", "record"), "run"),
    _Table("run_steps", ("run", "job", "policy", "reference", "reward"), ""),
    _Table("run_nodes", ("run", "node", "reward"), ""),
    _Table("run_minutes", ("minute", "policy", "completions", "tokens", "failed"), ""),
    _Table("run_sources", ("source", "place")),
    _Table("draws", ("policy", "rollout", "trial", "version", "taken", "time")),
    _Table("erased", ("rollout",), ""),
)
"""A table without a place is read in the order of its columns; its rows are counted."""


@dataclass(frozen=True, slots=True)
class TableDigest:
    """What was moved of a table.

    Args:
        rows: How many rows it has, on both sides.
        digest: SHA-256 over them, hexadecimal, the same on both sides. The order of rows does not matter.
    """

    rows: int
    digest: str


def move(
    home: Home, source: str, url: str, on_progress: ReportProgress = lambda table, done, rows: None
) -> dict[str, TableDigest]:
    """Copies a home's ledger and books, and compares them. No server may use the home or the database. Afterwards, the
    files can be `put_away`.

    Args:
        home: The home.
        source: Its server's id, by which a move that goes on knows what it has brought.
        url: `postgresql://…`, as libpq reads it. The database must be empty, but for an earlier part of the same move.
        on_progress: Called with the progress.

    Returns:
        By table: what was moved.

    Raises:
        ConfigError: The home has no ledger in SQLite, or the database has rows of others.
        LedgerError: The database or a file cannot be read or written, or the rows differ in the end.
    """
    ledger_file, books_file = _file(home.ledger), _file(home.rollouts)
    for path, open_file in ((ledger_file, SQLiteLedger), (books_file, SQLiteBooks)):
        open_file(path).close()  # brings its tables to those of this release
    PostgresLedger(url).close()
    PostgresBooks(url).close()
    database = Database(url, "moves", [_MOVES])
    try:
        with closing(_open_sqlite(ledger_file)) as ledger, closing(_open_sqlite(books_file)) as books:
            with database.errors("written"), database.connect() as db:
                _refuse_others(db, source, database.label)
                _copy(ledger, db, _COMPLETIONS, source, _add_completions, on_progress)
                _take_place(ledger, db)
                for table in _BOOKS:
                    _copy(books, db, table, source, _add, on_progress)
            with database.errors("read"), database.connect() as db:
                digests = {"completions": _compare_table(ledger, db, _COMPLETIONS, on_progress)}
                return digests | {table.name: _compare_table(books, db, table, on_progress) for table in _BOOKS}
    finally:
        database.close()


def put_away(home: Home) -> None:
    """Gives the files that were moved the end `.moved`, so that no server goes on with them."""
    for path in map(_file, (home.ledger, home.rollouts)):
        if not path.name.endswith(_SUFFIX):
            path.rename(path.with_name(path.name + _SUFFIX))


def _file(path: Path) -> Path:
    target = path.with_name(path.name + _SUFFIX)
    if path.exists() or target.exists():
        return path if path.exists() else target
    raise ConfigError(f"{path.parent} has no {path.name}: name the home of a server whose ledger is in SQLite")


def _open_sqlite(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, timeout=30)
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # then all of it is in the file that gets another name
    return db


def _refuse_others(db: Db, source: str, label: str) -> None:
    """Raises ConfigError for a database that has rows which this move did not bring."""
    for table in (_COMPLETIONS, *_BOOKS):
        progress = db.execute("SELECT 1 FROM moves WHERE source = %s AND rows_of = %s", (source, table.name)).fetchone()
        if progress is None and db.execute(f"SELECT 1 FROM {table.name} LIMIT 1").fetchone():
            raise ConfigError(f"{label} has {table.name} of another server already: move to an empty database")


def _copy(
    source: sqlite3.Connection,
    db: Db,
    table: _Table,
    home: str,
    add: Callable[[Db, _Table, Sequence[Any]], None],
    on_progress: ReportProgress,
) -> None:
    """Copies what was not copied yet of a table."""
    row = db.execute("SELECT place, moved FROM moves WHERE source = %s AND rows_of = %s", (home, table.name)).fetchone()
    place, copies = row or (-(2**62), 0)
    (count,) = source.execute(f"SELECT count(*) FROM {table.name}").fetchone()
    on_progress(table.name, copies, count)
    columns, order = ", ".join(table.columns), table.place or ", ".join(table.columns)
    while True:
        if table.place:
            query = (
                f"SELECT {table.place}, {columns} FROM {table.name} WHERE {table.place} > ? ORDER BY {order} LIMIT ?"
            )
            rows = source.execute(query, (place, _BATCH)).fetchall()
        else:
            query = f"SELECT 0, {columns} FROM {table.name} ORDER BY {order} LIMIT ? OFFSET ?"
            rows = source.execute(query, (_BATCH, copies)).fetchall()
        if not rows:
            return
        place, copies = rows[-1][0], copies + len(rows)
        with db.transaction():
            add(db, table, [[storable(cell) if isinstance(cell, str) else cell for cell in row[1:]] for row in rows])
            if table.number_column:
                last = f"SELECT setval(pg_get_serial_sequence('{table.name}', '{table.number_column}'), %s)"
                db.execute(last, (place,))
            db.execute(
                "INSERT INTO moves VALUES (%s, %s, %s, %s) ON CONFLICT (source, rows_of) "
                "DO UPDATE SET place = excluded.place, moved = excluded.moved",
                (home, table.name, place, copies),
            )
        on_progress(table.name, copies, count)


def _add(db: Db, table: _Table, rows: Sequence[Any]) -> None:
    marks = ", ".join(["%s"] * len(table.columns))
    with db.cursor() as cursor:
        query = f"INSERT INTO {table.name} ({', '.join(table.columns)}) OVERRIDING SYSTEM VALUE VALUES ({marks})"
        cursor.executemany(query, rows)


def _add_completions(db: Db, _table: _Table, rows: Sequence[Any]) -> None:
    records = [
        {**columns_of(from_json(Completion, record)), "record": record, "place": place} for place, _, record in rows
    ]
    names = list(records[0])
    with db.cursor() as cursor:
        query = f"INSERT INTO completions ({', '.join(names)}) VALUES ({', '.join(f'%({name})s' for name in names)})"
        cursor.executemany(query, records)


def _take_place(source: sqlite3.Connection, db: Db) -> None:
    """Later completions get higher places than all that there ever were."""
    query = "SELECT max(coalesce((SELECT max(rowid) FROM completions), 0), coalesce((SELECT max(last) FROM places), 0))"
    db.execute("UPDATE places SET last = greatest(last, %s)", source.execute(query).fetchone())


def _compare_table(source: sqlite3.Connection, db: Db, table: _Table, on_progress: ReportProgress) -> TableDigest:
    """Reads a table on both sides. Raises ConfigError if they differ."""
    names = ["place" if table is _COMPLETIONS and name == "rowid" else name for name in table.columns]
    here = _digest(source.execute(f"SELECT {', '.join(table.columns)} FROM {table.name}"))
    with db.transaction(), db.cursor(name="moved") as cursor:
        cursor.itersize = _BATCH
        cursor.execute(f"SELECT {', '.join(names)} FROM {table.name}")
        there = _digest(cursor)
    if here != there:
        raise ConfigError(
            f"{table.name}: the home has {here.rows} rows of digest {here.digest[:12]}…, and the database {there.rows} "
            f"of {there.digest[:12]}…. Nothing of the home was changed: move to an empty database, with no server on it"
        )
    on_progress(f"{table.name} compared", here.rows, here.rows)
    return here


def _digest(rows: Iterator[Any] | Any) -> TableDigest:
    total = count = 0
    for row in rows:
        plain = [
            storable(cell) if isinstance(cell, str) else cell.hex() if isinstance(cell, bytes) else cell for cell in row
        ]
        total += int.from_bytes(hashlib.sha256(json.dumps(plain).encode()).digest())
        count += 1
    return TableDigest(count, f"{total % 2**256:064x}")
