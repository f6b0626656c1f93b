"""Observes a SQLite database: its schema, and the values in its tables."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from art_mcp.worlds.database import SIDECARS, is_database, read_only
from art_mcp.worlds.observers.observer import Show

CELLS = 20_000
"""Values of a table that are observed one by one. A table that had more before the run is known by the number and
digest of its rows."""


LONGEST_VALUE = 64_000_000
"""Bytes of a value or row that are read at most: a view of a few bytes may make values of gigabytes."""


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
            with closing(read_only(path)) as database:
                database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST_VALUE)
                return dict(_entries(database, sizes, show))
        except sqlite3.Error as error:
            raise OSError(f"it is no database any more: {error}") from None


def _sizes(path: Path) -> dict[str, int]:
    """The numbers of values of the tables of a database. Those that cannot be read are left out."""
    sizes = {}
    with suppress(sqlite3.Error, OSError), closing(read_only(path, immutable=True)) as database:
        for (name,) in database.execute("select name from sqlite_master where type = 'table'").fetchall():
            with suppress(sqlite3.Error):
                sizes[name] = _size(database, name)
    return sizes


def _size(database: sqlite3.Connection, table: str) -> int:
    columns = len(database.execute(f"pragma table_info({_quoted(table)})").fetchall())
    (rows,) = database.execute(f"select count(*) from {_quoted(table)}").fetchone()
    return columns * int(rows)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _entries(database: sqlite3.Connection, sizes: Mapping[str, int], show: Show) -> Iterator[tuple[str, str]]:
    """The names and values of a database."""
    schema = database.execute("select type, name, sql from sqlite_master order by type, name").fetchall()
    for kind, name, sql in schema:
        if name.startswith("sqlite_stat"):
            continue
        if sql:
            yield f"{kind} {name}", show(" ".join(sql.split()))
        if kind == "table":
            try:
                size = sizes[name] if name in sizes else _size(database, name)
                yield from _rows(database, name, size > CELLS, show)
            except (sqlite3.OperationalError, sqlite3.DataError) as error:  # a module that is not here, or a long value
                yield f"rows of {name}", f"cannot be read: {error}"


def _rows(database: sqlite3.Connection, table: str, large: bool, show: Show) -> Iterator[tuple[str, str]]:
    """The names and values of the rows of a table; of a large one, their number and digest."""
    quoted = _quoted(table)
    columns = database.execute(f"pragma table_info({quoted})").fetchall()
    names = [column[1] for column in columns]
    keys = [column[1] for column in sorted(columns, key=lambda column: column[5]) if column[5]]
    selected = ", ".join(map(_quoted, names))
    try:
        rows = database.execute(f"select {'rowid' if not keys else 'null'}, {selected} from {quoted}")
    except sqlite3.OperationalError:  # a view in the place of a table, or a virtual table without row ids
        rows = database.execute(f"select null, {selected} from {quoted}")
    if large:
        lines = sorted(json.dumps([show(_text(value)) for value in row[1:]]) for row in rows)
        digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()[:32]
        yield f"rows of {table}", f"{len(lines):,} rows, sha256 {digest}"
        return
    for number, row in enumerate(rows):
        values = dict(zip(names, row[1:], strict=True))
        by_key = ", ".join(f"{key}={show(_text(values[key]))}" for key in keys)
        where = by_key or f"row {number + 1 if row[0] is None else row[0]}"
        for name, value in values.items():
            yield f"{table}[{where}].{name}", show(_text(value))


def _text(value: Any) -> str | bytes:
    """A value of SQLite as text: NULL, numbers as they are, texts in quotation marks."""
    if value is None:
        return "NULL"
    return value if isinstance(value, bytes) else json.dumps(value, ensure_ascii=False)
