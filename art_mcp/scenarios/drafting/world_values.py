"""The values that the places of a world show: paths of files, tables and columns, cells, keys of JSON."""

from __future__ import annotations

import csv
import io
import json
import logging
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

from art_mcp.client.effects import words
from art_mcp.scenarios.observe import Finding, findings, meanings, objects
from art_mcp.worlds import database
from art_mcp.worlds.alias import alias
from art_mcp.worlds.files import open_regular, walk
from art_mcp.worlds.place import Place

log = logging.getLogger("art_mcp")

MAX_ENTRIES = 300
"""Files and directories of a place that are listed, at most."""

MAX_FILES = 40
"""Files of a place that are read, at most."""

MAX_BYTES = 65_536
"""Bytes of a file that are read, at most."""

MAX_ROWS = 60
"""Rows of a table, and tables of a database, that are read, at most."""

MAX_CELL = 80
"""Characters of a cell that may be an argument, at most."""

_KINDS = {
    "repository": ("repository", "repo", "git", "directory", "root", "project", "workspace"),
    "directory": ("directory", "root", "project", "workspace"),
    "database": ("database", "db", "sqlite", "file"),
    "file": ("file",),
}
"""Words, as `meanings` gives them, of what a place is."""

Rows = list[dict[str, Any]]


def place_findings(place: Place) -> Iterator[Finding]:
    """The path of a place.

    Args:
        place: The place.
    """
    yield Finding(None, (), frozenset({"path", *words(place.name), *_KINDS[place.kind]}), alias(place))


def content_findings(place: Place) -> tuple[list[Finding], Rows]:
    """What is in a place. What cannot be read is left out.

    Args:
        place: The place.

    Returns:
        Its values, and the records among them.
    """
    values: list[Finding] = []
    records: Rows = []
    try:
        if place.kind == "database":
            _read_database(place.original, values, records)
        elif place.kind == "file":
            values.append(Finding(None, ("path",), frozenset({"directory", "parent"}), alias(place).rpartition("/")[0]))
            _read_file(place.original, values, records)
        else:
            _read_directory(place, values, records)
    except (OSError, sqlite3.Error, UnicodeError, ValueError, RecursionError, csv.Error) as error:
        log.debug("%s shows no values: %s", place.original, error)
    return values, records


def _read_directory(place: Place, values: list[Finding], records: Rows) -> None:
    """Lists a directory, and reads its first files. What is hidden is left out."""
    files: list[Path] = []
    for count, entry in enumerate(walk(place.original)):
        path = Path(entry.path).relative_to(place.original)
        if count > 20 * MAX_ENTRIES or len(values) > 3 * MAX_ENTRIES:
            break
        if any(part.startswith(".") for part in path.parts):
            continue
        is_directory = entry.is_dir(follow_symlinks=False)
        kind = frozenset({"directory" if is_directory else "file"})
        values.append(Finding(None, ("path",), kind, f"{alias(place)}/{path.as_posix()}"))
        values.append(Finding(None, ("path",), kind | {"relative"}, path.as_posix()))
        if len(path.parts) > 1:
            values.append(Finding(None, ("name",), kind, path.name))
        if not is_directory:
            values.append(Finding(None, ("name",), kind | {"title"}, path.stem))
            files.append(Path(entry.path))
    for file in files[:MAX_FILES]:
        try:
            (_read_database if database.is_database(file) else _read_file)(file, values, records)
        except (OSError, sqlite3.Error, UnicodeError, ValueError, RecursionError, csv.Error) as error:
            log.debug("%s shows no values: %s", file, error)


def _read_file(path: Path, values: list[Finding], records: Rows) -> None:
    """Reads a file of rows or of JSON. Other files show nothing but their paths."""
    ending = path.suffix.casefold()
    if ending not in (".csv", ".tsv", ".json"):
        return
    with open_regular(path) as file:
        text = file.read(MAX_BYTES).decode()
    if ending == ".json":
        value = json.loads(text)
        values += list(findings(path.stem, value))[:MAX_ENTRIES]
        records += islice(objects(value), MAX_ROWS)
        return
    rows = list(csv.DictReader(io.StringIO(text), delimiter="\t" if ending == ".tsv" else ","))[:MAX_ROWS]
    _add_rows(path.stem, [{str(key): value for key, value in row.items() if key} for row in rows], values, records)


def _read_database(path: Path, values: list[Finding], records: Rows) -> None:
    """Reads the names of tables, and the first rows of each."""
    with closing(database.read_only(path, immutable=True)) as connection:
        names = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' LIMIT 60")]
        for name in names:
            if name.startswith("sqlite_"):
                continue
            values.append(Finding(None, (), frozenset({"table", "name"}), name))
            quoted = name.replace('"', '""')
            cursor = connection.execute(f'SELECT * FROM "{quoted}" LIMIT {MAX_ROWS}')
            columns = [str(column[0]) for column in cursor.description]
            _add_rows(name, [dict(zip(columns, row, strict=True)) for row in cursor], values, records)


def _add_rows(name: str, rows: Rows, values: list[Finding], records: Rows) -> None:
    """Adds the columns and the cells of a table."""
    about = frozenset(meanings(name))
    for column in dict.fromkeys(column for row in rows for column in row):
        values.append(Finding(None, (), frozenset({"column", "field", "header", "name"}), column))
    for row in rows:
        cells = {column: cell for column, cell in row.items() if _is_short(cell)}
        if cells:
            records.append(cells)
        values += [Finding(None, tuple(meanings(column)), about, cell) for column, cell in cells.items()]


def _is_short(cell: Any) -> bool:
    """Whether a cell may be an argument."""
    return (isinstance(cell, str) and 0 < len(cell) <= MAX_CELL and "\n" not in cell) or type(cell) is int


def all_findings(places: Iterable[Place]) -> tuple[list[Finding], Rows]:
    """The paths of places, and what is in them.

    Args:
        places: The places.
    """
    values: list[Finding] = []
    records: Rows = []
    for place in places:
        values += place_findings(place)
    for place in places:
        inside, rows = content_findings(place)
        values += inside
        records += rows
    return values, records
