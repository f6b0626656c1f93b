"""Copies of databases, whatever state they are in. The original is not written."""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from art_mcp.worlds.database import copy_database, is_database
from tests.support.mcp.originals import digest, make_database

ROWS = [("Ada",), ("Bob",)]


def rows(path: Path) -> list[tuple[str]]:
    with closing(sqlite3.connect(path)) as database:
        return database.execute("select name from users order by id").fetchall()


@pytest.mark.parametrize("state", ["in use", "left by a crash", "crash with locks", "closed", "no log", "read-only"])
def test_a_copy_has_what_is_in_the_log_and_the_original_is_not_touched(state: str, tmp_path: Path) -> None:
    original = tmp_path / "data" / "shop.db"
    original.parent.mkdir()
    with closing(make_database(tmp_path / "live.db")):
        if state in ("in use", "left by a crash", "crash with locks"):
            for suffix in ("", "-wal", *(["-shm"] if state == "crash with locks" else [])):
                shutil.copyfile(tmp_path / f"live.db{suffix}", f"{original}{suffix}")
        if state == "in use":
            original = tmp_path / "live.db"
            before, copied = digest(original.parent), tmp_path.with_name(f"{tmp_path.name}-copy.db")
            copy_database(original, copied)
            assert digest(original.parent) == before
            assert rows(copied) == ROWS
            return
    if not original.exists():
        shutil.copyfile(tmp_path / "live.db", original)
    if state == "no log":
        with closing(sqlite3.connect(original)) as plain:
            plain.execute("pragma journal_mode=delete")
    if state == "read-only":
        os.chmod(original, 0o444)
    before = digest(original.parent)
    copy_database(original, tmp_path / "copy.db")
    after = digest(original.parent)
    if state == "crash with locks":  # a log that nobody recovered: its index is made anew in `-shm`
        assert {name.removesuffix("-shm") for name in after} == {name.removesuffix("-shm") for name in before}
    assert {name: seen for name, seen in after.items() if name in before} == before
    assert rows(tmp_path / "copy.db") == ROWS
    assert (tmp_path / "copy.db").stat().st_mode == original.stat().st_mode


def test_a_writer_is_waited_for_and_its_transaction_is_whole_or_not_there(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "a.db", isolation_level=None)) as writer:
        writer.execute("create table users (id integer primary key, name text)")
        writer.execute("insert into users (name) values ('Ada'), ('Bob')")
        writer.execute("begin immediate")
        writer.execute("insert into users (name) values ('half')")
        copy_database(tmp_path / "a.db", tmp_path / "b.db")
        writer.execute("commit")
    assert rows(tmp_path / "b.db") == ROWS
    assert len(rows(tmp_path / "a.db")) == 3


def test_what_a_database_is(tmp_path: Path) -> None:
    for name, data in (("new.sqlite", b""), ("new.txt", b""), ("a.db", b"text"), ("b", b"SQLite format 3\0...")):
        (tmp_path / name).write_bytes(data)
    assert [name for name in ("new.sqlite", "new.txt", "a.db", "b", "none") if is_database(tmp_path / name)] == [
        "new.sqlite",
        "b",
    ]
    copy_database(tmp_path / "new.sqlite", tmp_path / "copy.sqlite")
    assert (tmp_path / "copy.sqlite").read_bytes() == b""
    with pytest.raises(sqlite3.DatabaseError):
        copy_database(tmp_path / "b", tmp_path / "c")


def test_a_transaction_that_a_process_left_is_rolled_back_in_the_copy(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    with closing(sqlite3.connect(tmp_path / "a.db", isolation_level=None)) as writer:
        writer.execute("create table users (id integer primary key, name text)")
        writer.execute("insert into users (name) values ('Ada'), ('Bob')")
        writer.execute("pragma cache_size=1")
        writer.execute("begin")
        writer.execute("update users set name = 'half'")
        writer.executemany("insert into users (name) values (?)", [("x" * 4000,)] * 50)  # more than the cache holds
        for suffix in ("", "-journal"):
            shutil.copyfile(tmp_path / f"a.db{suffix}", tmp_path / "data" / f"a.db{suffix}")
        writer.execute("rollback")
    before = digest(tmp_path / "data")
    copy_database(tmp_path / "data" / "a.db", tmp_path / "copy.db")
    assert rows(tmp_path / "copy.db") == ROWS
    assert digest(tmp_path / "data") == before
