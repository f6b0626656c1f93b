"""SQLite databases: recognised by their first bytes, copied consistently while others write to them."""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from art_mcp.worlds.files import open_regular

MAGIC = b"SQLite format 3\0"

SIDECARS = ("-wal", "-shm", "-journal")
"""Suffixes of the files that SQLite keeps beside a database."""

_SUFFIXES = {".db", ".db3", ".sqlite", ".sqlite3"}
PATIENCE = 60.0
"""Seconds in which a database must be observed."""

_BUSY = 10.0
"""Seconds to wait for a writer."""


def is_database(path: Path) -> bool:
    """Whether a file is a SQLite database. SQLite takes an empty file for an empty database: its suffix decides."""
    try:
        with open_regular(path) as file:
            head = file.read(len(MAGIC))
    except OSError:
        return False
    return head == MAGIC or (not head and path.suffix in _SUFFIXES)


def copy_database(source: Path, target: Path) -> None:
    """Copies a database as of one moment, with what is still in its write-ahead log, by SQLite's backup API.

    The source is only read: no file of it changes, and none is made beside it. (Every reader of a database in WAL mode
    that is in use takes part in the locks in its `-shm` file, which are no content.)

    Args:
        source: The database. Other processes may be writing to it.
        target: The file to make.

    Raises:
        OSError: A file beside it is no regular file.
        sqlite3.Error: The file cannot be read as a database, or a writer did not let go of it.
    """
    wal, shm, journal = (source.with_name(source.name + suffix) for suffix in SIDECARS)
    for path in (wal, shm, journal):
        if os.path.lexists(path):
            open_regular(path).close()  # SQLite would wait for whoever writes to a pipe
    if not source.stat().st_size and not wal.exists():  # a database without a page: a backup would give it one
        target.touch()
    elif _in_wal_mode(source) and not shm.exists():
        if not wal.exists():
            # Nobody has it open. SQLite would make -wal and -shm beside it, unless it is told that nobody will.
            _backup(source, target, "mode=ro&immutable=1")
        else:  # a process died and left its log: recovering it writes, so that is done in a copy
            _copy_recovered(source, wal, target)
    else:
        try:
            _backup(source, target, "mode=ro")
        except sqlite3.OperationalError as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF not in _READ_ONLY or not journal.exists():
                raise
            target.unlink(missing_ok=True)
            _copy_recovered(
                source, journal, target
            )  # a process died in a transaction, whose journal nobody rolled back
    shutil.copystat(source, target)


_READ_ONLY = {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN}
"""Errors of a reader that would have to write first."""


def _copy_recovered(source: Path, log: Path, target: Path) -> None:
    """Copies a database with the log or journal that a process left. Recovering writes: that is done in a copy."""
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        for path in (source, log):
            shutil.copyfile(path, Path(scratch) / path.name)
        _backup(Path(scratch) / source.name, target, "mode=rw")


def read_only(path: Path, *, immutable: bool = False) -> sqlite3.Connection:
    """Opens a database for reading. Texts that are no UTF-8 are read with replacement characters.

    A query that takes longer than PATIENCE fails: a run may have written a schema that computes without an end.

    Args:
        path: The database.
        immutable: Whether nobody writes to it. Then nothing is made beside it.

    Raises:
        OSError: A file beside it is no regular file, which SQLite would wait for.
        sqlite3.Error: It cannot be opened.
    """
    for suffix in ("", *SIDECARS):
        if os.path.lexists(f"{path}{suffix}"):
            open_regular(f"{path}{suffix}").close()
    mode = "mode=ro&immutable=1" if immutable else "mode=ro"
    connection = sqlite3.connect(f"file:{quote(str(path))}?{mode}", uri=True, timeout=_BUSY)
    deadline = time.monotonic() + PATIENCE
    connection.set_progress_handler(lambda: time.monotonic() > deadline, 1_000_000)
    connection.text_factory = lambda data: data.decode(errors="replace")
    return connection


def _backup(source: Path, target: Path, mode: str) -> None:
    with (
        closing(sqlite3.connect(f"file:{quote(str(source))}?{mode}", uri=True, timeout=_BUSY)) as reading,
        closing(sqlite3.connect(target)) as writing,
    ):
        reading.backup(writing, progress=_let_go(time.monotonic() + _BUSY))
    for suffix in SIDECARS:
        assert not os.path.exists(f"{target}{suffix}"), f"the copy of {source} is not complete"


def _let_go(deadline: float) -> Callable[[int, int, int], None]:
    """A callback that ends a backup, which otherwise waits for ever for a lock. Raises sqlite3.OperationalError."""

    def progress(status: int, remaining: int, total: int) -> None:
        if status in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED) and time.monotonic() > deadline:
            raise sqlite3.OperationalError("database is locked")

    return progress


def _in_wal_mode(path: Path) -> bool:
    """Whether the header says that the database has a write-ahead log (the file format's versions at byte 18)."""
    with open(path, "rb") as file:
        return file.read(20)[18:20] == b"\x02\x02"
