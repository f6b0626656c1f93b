"""Captured runs and a store that cannot be written: they wait, they go to a file, and somebody says so."""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import stat
import tempfile
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from art_langgraph import ARTError, Trajectory, TrajectoryStore
from art_langgraph.capture import writer as module
from art_langgraph.capture.writer import Writer
from art_langgraph.trajectory import CompletionCall, Scenario
from trainer_server.common.jsonl import read_jsonl


def run(number: int = 0, **fields: object) -> Trajectory:
    return Trajectory(scenario=Scenario(input=f"q{number}"), **fields)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TrajectoryStore]:
    """A store that another process keeps from being written, with writers that are not patient."""
    monkeypatch.setattr(module, "_PATIENCE", 0.0)
    store = TrajectoryStore(tmp_path / "runs" / "s.sqlite")
    with closing(sqlite3.connect(store.path, isolation_level=None)) as db:
        db.execute("BEGIN IMMEDIATE")
        yield store


def saved(message: str) -> list[Trajectory]:
    """The runs in the file that a message names."""
    file = re.search(r"trajectories import ([^`]+)`", message)
    assert file, message
    return list(read_jsonl(file[1], Trajectory.model_validate))


def test_runs_wait_and_flush_says_why(store: TrajectoryStore) -> None:
    writer = Writer(store)
    writer.note_end(run())
    with pytest.raises(ARTError, match=r"1 records of captured runs are not in .*s\.sqlite after 0.2 s \(database is"):
        writer.flush(0.2)
    writer.close()


def test_what_cannot_be_written_at_the_end_is_in_a_file(store: TrajectoryStore) -> None:
    writer = Writer(store)
    ended, open_run = [run(1, error="\ud83d"), run(2)], run(3)
    writer.note_start(open_run)
    writer.note_completion(open_run, CompletionCall(id="c", started=0.0))
    for one in ended:
        writer.note_start(one)
        writer.note_end(one)
    message = writer.close()
    assert message
    assert "2 captured runs can be read from" in message
    assert "nothing more is kept of 1 that had not ended" in message
    assert "database is locked" in message
    assert saved(message) == ended
    assert len(store) == 0


def test_a_lock_that_ends_costs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PATIENCE", 0.0)
    monkeypatch.setattr(module, "_AGAIN", 0.01)
    store = TrajectoryStore(tmp_path / "s.sqlite")
    writer, one = Writer(store), run()
    with closing(sqlite3.connect(store.path, isolation_level=None)) as db:
        db.execute("BEGIN IMMEDIATE")
        writer.note_end(one)
        with pytest.raises(ARTError):
            writer.flush(0.1)
    writer.flush(10)
    assert writer.close() is None
    assert store.get(one.id) == one


def test_when_too_many_wait_they_go_to_a_file_at_once(
    store: TrajectoryStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "_MOST", 3)
    monkeypatch.setattr(module, "_AGAIN", 0.01)
    writer, ended = Writer(store), [run(number) for number in range(8)]
    for one in ended:
        writer.note_end(one)
    with suppress(ARTError):  # fewer than _MOST may be left, which wait for the store
        writer.flush(1)
    assert "import" in caplog.text
    messages = [text for text in (*caplog.messages, writer.close()) if text and "import" in text]
    assert {one.id: one for text in messages for one in saved(text)} == {one.id: one for one in ended}
    assert len(store) == 0


def test_nobody_can_put_a_link_where_the_file_will_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared, victim = tmp_path / "shared", tmp_path / "victim"
    shared.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(shared))
    store = TrajectoryStore(tmp_path / "runs" / "s.sqlite")
    shutil.rmtree(tmp_path / "runs")
    (shared / f"s.not-stored-{os.getpid()}.jsonl").symlink_to(victim)
    writer, one = Writer(store), run(1)
    writer.note_end(one)
    message = writer.close()
    assert saved(message or "") == [one]
    assert not victim.exists()
    (file,) = (path for path in shared.iterdir() if not path.is_symlink())
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert str(os.getpid()) not in file.name.removeprefix("s.not-stored-").split(".")[0].split("-")


def test_without_a_place_for_a_file_the_number_of_lost_runs_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = TrajectoryStore(tmp_path / "runs" / "s.sqlite")
    shutil.rmtree(tmp_path / "runs")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    writer = Writer(store)
    writer.note_end(run())
    assert re.search(r"cannot be written \(unable to open database file\); lost: 1 captured run,", writer.close() or "")


def test_a_file_that_is_no_store_any_more_keeps_no_run_from_being_saved(tmp_path: Path) -> None:
    store = TrajectoryStore(tmp_path / "s.sqlite")
    store.path.write_bytes(b"this is no database at all" * 100)
    writer, one = Writer(store), run()
    writer.note_end(one)
    message = writer.close() or ""
    assert "file is not a database" in message
    assert saved(message) == [one]


def test_a_run_that_cannot_be_written_costs_no_other(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = TrajectoryStore(tmp_path / "s.sqlite")
    known, other = run(1), run(2)
    store.add(known.model_copy(update={"output": "another"}))
    writer = Writer(store)
    for one in (known, other):
        writer.note_end(one)
    assert writer.close() is None
    assert len(store) == 2
    assert (
        "a captured run is lost: it cannot be written: the trajectory store has another run with the id" in caplog.text
    )


def test_what_is_written_again_after_a_lost_answer_is_no_lost_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store, one = TrajectoryStore(tmp_path / "s.sqlite"), run()
    writer = Writer(store)
    for _ in range(2):
        writer.note_start(one)
        writer.note_completion(one, CompletionCall(id="c", started=0.0))
        writer.note_end(one)
        writer.flush(10)
    assert writer.close() is None
    assert "lost" not in caplog.text
    assert (store.list(), store.unfinished()) == ([one], [])
