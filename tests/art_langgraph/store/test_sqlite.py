"""A trajectory store in a file: who may read it, and what is said when it cannot be used."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from art_langgraph import Scenario, Trajectory, TrajectoryStore
from art_langgraph.store import DuplicateRun
from trainer_server.wire import ConfigError


def run(scenario: str) -> Trajectory:
    return Trajectory(scenario=Scenario(id=scenario, input="x"))


def test_only_the_user_may_read_the_store(tmp_path: Path) -> None:
    store = TrajectoryStore(tmp_path / "home" / "s.sqlite")
    with store.session() as session, session.batch() as batch:
        batch.add(run("a"))
        files = sorted(store.path.parent.iterdir())
        assert len(files) == 3  # with those that SQLite makes beside it
        assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
    store.path.chmod(0o640)
    TrajectoryStore(store.path)
    assert store.path.stat().st_mode & 0o777 == 0o640


def test_a_store_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "file" / "s.sqlite", tmp_path):
        with pytest.raises(ConfigError, match=f"the trajectory store {path} cannot be opened"):
            TrajectoryStore(path)
    (tmp_path / "other").write_text("no database" * 100)
    with pytest.raises(ConfigError, match="file is not a database"):
        TrajectoryStore(tmp_path / "other")


def test_a_store_that_breaks_is_named(tmp_path: Path) -> None:
    store = TrajectoryStore(tmp_path / "s.sqlite")
    store.path.write_bytes(b"this is no database" * 100)
    for use in (lambda: store.add(run("a")), lambda: store.score("a", 1.0), store.list, lambda: len(store)):
        with pytest.raises(ConfigError, match=r"s\.sqlite cannot be used: file is not a database"):
            use()


def test_a_run_that_an_earlier_release_stored_can_be_added_again(tmp_path: Path) -> None:
    """Earlier releases wrote the fields of a record in another order."""
    path, trajectory = tmp_path / "runs.sqlite", run("s")
    store = TrajectoryStore(path)
    store.add(trajectory)
    with closing(sqlite3.connect(path)) as db, db:
        (record,) = db.execute("SELECT record FROM trajectories").fetchone()
        earlier = json.dumps(dict(reversed(json.loads(record).items())))
        assert earlier != record
        db.execute("UPDATE trajectories SET record = ?", (earlier,))
    store.add(trajectory)
    with pytest.raises(DuplicateRun):
        store.add(trajectory.model_copy(update={"reward": 0.0}))
