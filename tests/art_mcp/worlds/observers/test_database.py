"""Databases by their schema and rows."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from art_mcp.worlds.observers import database
from art_mcp.worlds.observers.database import DatabaseObserver
from art_mcp.worlds.observers.observer import render_value
from tests.support.mcp.originals import make_database


def made(path: Path, *statements: str) -> dict[str, str]:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)
    return dict(DatabaseObserver().observe(path, path, render_value))


def test_values_are_known_by_the_key_of_their_row(tmp_path: Path) -> None:
    seen = made(
        tmp_path / "a.db",
        "create table users (id integer primary key, name text)",
        "create table likes (who text, what text, n real, primary key (who, what)) without rowid",
        "create table notes (t, b)",
        "insert into users values (3, 'Ada'), (4, null)",
        "insert into likes values ('Ada', 'tea', 1.5)",
        "insert into notes values ('x', x'00ff')",
        "create view v as select 1",
        "create index i on users (name)",
    )
    blob = seen.pop("notes[row 1].b")
    assert blob.startswith("2 bytes, sha256 ")
    assert seen == {
        "index i": "CREATE INDEX i on users (name)",
        "table likes": "CREATE TABLE likes (who text, what text, n real, primary key (who, what)) without rowid",
        'likes[who="Ada", what="tea"].who': '"Ada"',
        'likes[who="Ada", what="tea"].what': '"tea"',
        'likes[who="Ada", what="tea"].n': "1.5",
        "table notes": "CREATE TABLE notes (t, b)",
        "notes[row 1].t": '"x"',
        "table users": "CREATE TABLE users (id integer primary key, name text)",
        "users[id=3].id": "3",
        "users[id=3].name": '"Ada"',
        "users[id=4].id": "4",
        "users[id=4].name": "NULL",
        "view v": "CREATE VIEW v as select 1",
    }


def test_a_large_table_is_known_by_its_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "CELLS", 3)
    make = "create table t (a, b)"
    first = made(tmp_path / "1.db", make, "insert into t values (1, 2), (3, 4)")
    other = made(tmp_path / "2.db", make, "insert into t values (3, 4)", "insert into t values (1, 2)")
    third = made(tmp_path / "3.db", make, "insert into t values (1, 2), (3, 5)")
    assert first["rows of t"].startswith("2 rows, sha256 ")
    assert first == other != third


def test_a_database_in_use_is_one_with_its_log(tmp_path: Path) -> None:
    observer, path = DatabaseObserver(), tmp_path / "shop.db"
    with closing(make_database(path)):
        assert {entry.name for entry in tmp_path.iterdir()} == {"shop.db", "shop.db-wal", "shop.db-shm"}
        assert all(observer.claims(entry) for entry in tmp_path.iterdir())
        assert observer.observe(tmp_path / "shop.db-wal", path, render_value) == {}
        assert observer.observe(path, path, render_value)["users[id=2].name"] == '"Bob"'
    (tmp_path / "x-wal").touch()
    assert not observer.claims(tmp_path / "x-wal")


def test_what_is_no_database_cannot_be_read_as_one(tmp_path: Path) -> None:
    broken = tmp_path / "broken.db"
    broken.write_bytes(b"SQLite format 3\0" + b"x" * 5000)
    assert DatabaseObserver().claims(broken)
    with pytest.raises(OSError, match="no database any more"):
        DatabaseObserver().observe(broken, broken, render_value)


def test_the_form_of_a_table_is_that_of_before_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "CELLS", 3)
    made(tmp_path / "small.db", "create table t (a)", "insert into t values (1), (2), (3)")
    made(tmp_path / "large.db", "create table t (a)", "insert into t values (1), (2), (3), (4)")
    observe = DatabaseObserver().observe
    grown = observe(tmp_path / "large.db", tmp_path / "small.db", render_value)
    assert grown["t[row 4].a"] == "4"
    shrunk = observe(tmp_path / "small.db", tmp_path / "large.db", render_value)
    assert shrunk["rows of t"].startswith("3 rows, sha256 ")


def test_a_value_that_a_schema_makes_is_not_read_without_a_limit(tmp_path: Path) -> None:
    seen = made(
        tmp_path / "a.db",
        "create view v as select 1 as id, zeroblob(100000000) as b",
        "create virtual table f using fts5(b, content='v', content_rowid='id')",
    )
    assert "cannot be read" in seen["rows of f"]


def test_the_rows_of_a_database_have_a_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "LONGEST_DATABASE", 10_000)
    make = ["create table a (x)", "create table b (x)", "insert into a values (1)", "insert into b values (1), (2)"]
    seen = made(tmp_path / "1.db", *make, "create table big (x)", "insert into big values (zeroblob(9500)), (2)")
    assert seen["a[row 1].x"] == "1"
    assert "10,000 bytes" in seen.pop("rows of big")
    assert not any(name.startswith("big[") for name in seen), "all rows of a table are read, or none"
    monkeypatch.setattr(database, "CELLS", 1)
    assert "10,000 bytes" in made(tmp_path / "2.db", *make, "insert into b values (zeroblob(9500))")["rows of b"]
    monkeypatch.setattr(database, "PATIENCE", -1.0)
    assert "within" in made(tmp_path / "3.db", *make)["rows of b"]


def test_names_count_as_what_they_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "LONGEST_DATABASE", 10_000)
    column = "x" * 1_000
    rows = ", ".join("(1)" for _ in range(100))
    seen = made(tmp_path / "a.db", f"create table t ({column})", f"insert into t values {rows}")
    assert list(seen) == ["table t", "rows of t"]
