"""Schema numbers of databases: what is missing is done once, all of it or nothing. Newer files stay as they are."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from trainer_server.common.schemas import DatabaseSchema, script
from trainer_server.wire import ConfigError, NewerSchema

FIRST = script("CREATE TABLE IF NOT EXISTS words (word TEXT) STRICT;\nCREATE INDEX IF NOT EXISTS w ON words (word);")


def _count(db: sqlite3.Connection) -> None:
    db.execute("ALTER TABLE words ADD COLUMN letters INTEGER")
    db.execute("UPDATE words SET letters = length(word)")


SECOND = DatabaseSchema(FIRST, _count)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "words.sqlite"


@pytest.fixture
def db(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(path)) as db:
        yield db


def number(db: sqlite3.Connection) -> int:
    return int(db.execute("PRAGMA user_version").fetchone()[0])


def test_a_new_file_gets_all_tables_and_the_number(db: sqlite3.Connection, path: Path) -> None:
    SECOND.bring_up(db, path)
    assert (number(db), SECOND.number) == (2, 2)
    assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    db.execute("INSERT INTO words VALUES ('a', 1)")


@pytest.mark.parametrize("numbered", [True, False])
def test_an_earlier_file_keeps_its_rows_and_gets_what_is_missing(
    db: sqlite3.Connection, path: Path, numbered: bool
) -> None:
    """Files of the first release have no number."""
    if numbered:
        DatabaseSchema(FIRST).bring_up(db, path)
    else:
        FIRST(db)
    with db:
        db.execute("INSERT INTO words VALUES ('four')")
    SECOND.bring_up(db, path)
    SECOND.bring_up(db, path)
    assert db.execute("SELECT * FROM words").fetchall() == [("four", 4)]
    assert number(db) == 2


def test_a_migration_that_fails_leaves_the_file_as_it_was(db: sqlite3.Connection, path: Path) -> None:
    DatabaseSchema(FIRST).bring_up(db, path)
    broken = DatabaseSchema(FIRST, script("CREATE TABLE more (a);\nINSERT INTO nothing VALUES (1);"))
    with pytest.raises(sqlite3.OperationalError, match="nothing"):
        broken.bring_up(db, path)
    assert number(db) == 1
    assert db.execute("SELECT name FROM sqlite_master WHERE name = 'more'").fetchall() == []
    SECOND.bring_up(db, path)
    assert number(db) == 2


def test_a_newer_file_is_refused_and_left_as_it_is(db: sqlite3.Connection, path: Path) -> None:
    db.execute("PRAGMA user_version = 3")
    before = path.read_bytes()
    with pytest.raises(NewerSchema) as refused:
        SECOND.bring_up(db, path)
    assert isinstance(refused.value, ConfigError)
    for words in (str(path), "has schema 3", "up to 2", "Upgrade", "ART_HOME"):
        assert words in str(refused.value)
    assert path.read_bytes() == before


def test_several_processes_may_open_an_earlier_file_at_once(db: sqlite3.Connection, path: Path) -> None:
    DatabaseSchema(FIRST).bring_up(db, path)

    def opened(_: int) -> None:
        with closing(sqlite3.connect(path, timeout=30)) as other:
            SECOND.bring_up(other, path)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(opened, range(16)))
    assert number(db) == 2
