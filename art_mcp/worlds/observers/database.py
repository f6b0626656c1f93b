"""Observes a SQLite database: its schema, and the values in its tables."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from art_mcp.worlds.database import PATIENCE, SIDECARS, is_database, read_only
from art_mcp.worlds.observers.files import HUGE, FileObserver
from art_mcp.worlds.observers.observer import Show, Unread, render_value

CELLS = 20_000
"""Values of a table that are observed one by one. A table that had more before the run is known by the number and
digest of its rows."""

GROWTH = 10
"""Times CELLS values that another table may have after the run, to be observed one by one."""

LONGEST_VALUE = 64_000_000
"""Bytes of a value or row that are read at most: a view of a few bytes may make values of gigabytes."""

LONGEST_DATABASE = HUGE
"""Bytes of all values, and of their names, that are read at most. They are read within PATIENCE."""


_REASONS = {
    sqlite3.SQLITE_TOOBIG: f"a value or row has more than {LONGEST_VALUE:,} bytes",
    sqlite3.SQLITE_INTERRUPT: f"the database was not read within {PATIENCE:g} s",
}
"""What errors of SQLite mean here."""


class _BudgetError(Exception):
    """The budget was spent. The message says which."""


@dataclass(slots=True)
class _Budget:
    """What may still be read of a database.

    Args:
        size: Bytes.
        deadline: The time, by `time.monotonic`, until which it may be read.
    """

    size: int
    deadline: float

    def spend(self, *parts: Any) -> None:
        """Counts a row or name, with what Python needs for it. Raises _Spent when it is too much, or too late."""
        self.size -= 128 + sum(len(part) if isinstance(part, str | bytes) else 8 for part in parts)
        if self.size < 0:
            raise _BudgetError(f"the values of the database need more than {LONGEST_DATABASE:,} bytes")
        if time.monotonic() > self.deadline:
            raise _BudgetError(f"the database was not read within {PATIENCE:g} s")


class DatabaseObserver:
    """Names are `table users` for the schema, and `users[id=3].name` for a value. A row is known by its primary key,
    else by its row id."""

    def claims(self, path: Path) -> bool:
        if path.name.endswith(SIDECARS):
            return any(
                is_database(path.with_name(path.name.removesuffix(suffix)))
                for suffix in SIDECARS
                if path.name.endswith(suffix)
            )
        return path.is_file() and is_database(path)

    def files(self, path: Path) -> Iterable[Path]:
        return [path, *(path.with_name(path.name + suffix) for suffix in SIDECARS if suffix != "-shm")]

    def observe(self, path: Path, before: Path, show: Show) -> Mapping[str, str]:
        if path.name.endswith(SIDECARS):  # a part of the database beside it
            return {}
        try:
            sizes = _sizes(before)
            budget = _Budget(LONGEST_DATABASE, time.monotonic() + PATIENCE)
            with closing(read_only(path)) as database:
                database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST_VALUE)
                entries = dict(_entries(database, sizes, show, budget))
        except sqlite3.Error as error:
            raise OSError(f"it is no database any more: {error}") from None
        if any(isinstance(value, Unread) for value in entries.values()):  # a server that only reads may make a log
            mark = _content(path) + _content(path.with_name(f"{path.name}-wal"))
            for value in entries.values():
                if isinstance(value, Unread):
                    value.mark = value.mark or mark
        return entries


def _content(path: Path) -> str:
    """The digest of a file; of a large one its size and time. Empty: it is missing, or has no content."""
    if not path.exists() or not path.stat().st_size:
        return ""
    return FileObserver().observe(path, path, render_value)["content"]


def _sizes(path: Path) -> dict[str, int]:
    """The numbers of values of the tables of a database. Those that cannot be read are left out."""
    sizes = {}
    with suppress(sqlite3.Error, OSError), closing(read_only(path, immutable=True)) as database:
        for (name,) in database.execute("select name from sqlite_master where type = 'table'").fetchall():
            with suppress(sqlite3.Error):
                sizes[name] = _size(database, name)
    return sizes


def _size(database: sqlite3.Connection, table: str) -> int:
    columns = len(database.execute(f"pragma table_info({_quote_name(table)})").fetchall())
    (rows,) = database.execute(f"select count(*) from {_quote_name(table)}").fetchone()
    return columns * int(rows)


def _quote_name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _entries(
    database: sqlite3.Connection, sizes: Mapping[str, int], show: Show, budget: _Budget
) -> Iterator[tuple[str, str]]:
    """The names and values of a database. Of a table all rows are read, or none: which were read otherwise would depend
    on the other tables."""
    for kind, name, sql in database.execute("select type, name, sql from sqlite_master order by type, name"):
        if name.startswith("sqlite_stat"):
            continue
        try:
            budget.spend(name, sql or "")
        except _BudgetError as error:
            yield f"{kind} {name}", Unread(f"cannot be read: {error}", None)
        else:
            if sql:
                yield f"{kind} {name}", show(" ".join(sql.split()))
        if kind == "table":
            try:
                now = _size(database, name)
                size = sizes.get(name, now)
                entries = list(_rows(database, name, max(size, now // GROWTH) > CELLS, show, budget))
                if size <= CELLS < now // GROWTH:  # its earlier rows are in the digest
                    entries = [(what, Unread(value, f"{name}[", value)) for what, value in entries]
                yield from entries
            except (_BudgetError, sqlite3.OperationalError, sqlite3.DataError) as error:
                code = getattr(error, "sqlite_errorcode", 0)
                reason = f"cannot be read: {_REASONS.get(code, error)}"
                # The data of a virtual table whose module is not here are in other tables.
                elsewhere = code == sqlite3.SQLITE_ERROR and (sql or "").startswith("CREATE VIRTUAL ")
                yield f"rows of {name}", reason if elsewhere else Unread(reason, f"{name}[")


def _rows(
    database: sqlite3.Connection, table: str, large: bool, show: Show, budget: _Budget
) -> Iterator[tuple[str, str]]:
    """The names and values of the rows of a table; of a large one, their number and digest."""
    table_name = _quote_name(table)
    columns = database.execute(f"pragma table_info({table_name})").fetchall()
    names = [column[1] for column in columns]
    keys = [column[1] for column in sorted(columns, key=lambda column: column[5]) if column[5]]
    column_list = ", ".join(map(_quote_name, names))
    try:
        rows = database.execute(f"select {'rowid' if not keys else 'null'}, {column_list} from {table_name}")
    except sqlite3.OperationalError:  # a view in the place of a table, or a virtual table without row ids
        rows = database.execute(f"select null, {column_list} from {table_name}")
    if large:
        lines = []
        for row in rows:
            budget.spend(*row)
            lines.append(json.dumps([show(_text(value)) for value in row[1:]]))
        lines.sort()
        digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()[:32]
        yield f"rows of {table}", f"{len(lines):,} rows, sha256 {digest}"
        return
    for number, row in enumerate(rows):
        budget.spend(*row)
        values = dict(zip(names, row[1:], strict=True))
        by_key = ", ".join(f"{key}={show(_text(values[key]))}" for key in keys)
        where = by_key or f"row {number + 1 if row[0] is None else row[0]}"
        for name, value in values.items():
            full = f"{table}[{where}].{name}"
            budget.spend(full)
            yield full, show(_text(value))


def _text(value: Any) -> str | bytes:
    """A value of SQLite as text: NULL, numbers as they are, texts in quotation marks."""
    if value is None:
        return "NULL"
    return value if isinstance(value, bytes) else json.dumps(value, ensure_ascii=False)
