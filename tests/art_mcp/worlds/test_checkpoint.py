"""A copy is put back to a moment, while somebody has its files open."""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from art_mcp.worlds.checkpoint import Checkpoint
from tests.support.mcp.originals import digest, make_database


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "world" / "sub" / "empty").mkdir(parents=True)
    for name in ("a.txt", "sub/b.txt", "sub/c.txt"):
        (tmp_path / "world" / name).write_text(name)
    os.symlink("a.txt", tmp_path / "world" / "link")
    for name in ("a.txt", "sub", "."):
        os.utime(tmp_path / "world" / name, ns=(1, 10**18))
    return tmp_path / "world"


def test_contents_modes_times_and_links_are_put_back_again_and_again(place: Path) -> None:
    before, checkpoint = digest(place), Checkpoint(place, place.with_name("kept"))
    for _ in range(2):
        (place / "a.txt").write_text("A.TXT")
        os.utime(place / "a.txt", ns=(1, 10**18))  # nothing but the time of change tells
        os.chmod(place / "sub" / "c.txt", 0o400)
        (place / "sub" / "b.txt").unlink()
        (place / "sub" / "empty").rmdir()
        (place / "link").unlink()
        os.symlink("sub", place / "link")
        (place / "new" / "deep").mkdir(parents=True)
        (place / "new" / "deep" / "d.txt").write_text("d")
        assert digest(place) != before
        checkpoint.restore()
        assert digest(place) == before


def test_a_file_in_place_of_a_directory_and_a_directory_in_place_of_a_file_are_put_back(place: Path) -> None:
    before, checkpoint = digest(place), Checkpoint(place, place.with_name("kept"))
    shutil.rmtree(place / "sub")
    (place / "sub").write_text("a file")
    (place / "a.txt").unlink()
    (place / "a.txt" / "in").mkdir(parents=True)
    (place / "link").unlink()
    (place / "link").write_text("a file")
    checkpoint.restore()
    assert digest(place) == before


def test_who_has_a_file_open_reads_and_writes_what_was_put_back(place: Path) -> None:
    checkpoint = Checkpoint(place, place.with_name("kept"))
    with (place / "a.txt").open("r+") as reader, (place / "sub" / "b.txt").open("a") as writer:
        writer.write(" and more")
        writer.flush()
        (place / "a.txt").write_text("something else")
        assert reader.read() == "something else"
        checkpoint.restore()
        reader.seek(0)
        assert reader.read() == "a.txt"
        writer.write(", again")
    assert (place / "sub" / "b.txt").read_text() == "sub/b.txt, again"


@pytest.mark.parametrize("mode", ["wal", "delete"])
def test_an_open_connection_to_a_database_sees_what_was_put_back(mode: str, place: Path) -> None:
    with closing(make_database(place / "shop.db")):
        pass
    with closing(sqlite3.connect(place / "shop.db", isolation_level=None)) as database:
        database.execute(f"pragma journal_mode={mode}")
        names = "select name from users order by id"
        before = database.execute(names).fetchall()
        checkpoint = Checkpoint(place, place.with_name("kept"))
        for _ in range(3):
            database.execute("update users set name = 'Eve' where id = 2")
            database.executemany("insert into users (name) values (?)", [(f"{n} " * 500,) for n in range(40)])
            assert len(database.execute(names).fetchall()) == len(before) + 40
            checkpoint.restore()
            assert database.execute(names).fetchall() == before
            assert database.execute("pragma integrity_check").fetchall() == [("ok",)]
    with closing(sqlite3.connect(place / "shop.db")) as another:
        assert another.execute(names).fetchall() == before
