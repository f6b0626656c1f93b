"""The trajectory store: several writers, and kills."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from art_langgraph import Scenario, Trajectory, TrajectoryStore


def run(scenario: str, reward: float | None = None) -> Trajectory:
    return Trajectory(scenario=Scenario(id=scenario, input={"q": "ö"}), reward=reward, output={"a": [1, None]})


def test_listing_is_newest_first_and_filters(tmp_path: Path) -> None:
    store = TrajectoryStore(tmp_path / "s.sqlite")
    added = [run("a"), run("b", 0.5), run("a", 1.0)]
    for at, one in enumerate(added):
        one.started = float(at)
        store.add(one)
    assert [one.id for one in store.list()] == [one.id for one in reversed(added)]
    assert [one.reward for one in store.list(scenario="a")] == [1.0, None]
    assert [one.reward for one in store.list(since=1.0, limit=1)] == [1.0]
    assert store.get("unknown") is None
    assert store.get(added[1].id) == added[1]


def test_an_id_is_written_once(tmp_path: Path) -> None:
    store = TrajectoryStore(tmp_path / "s.sqlite")
    one = run("a")
    store.add(one)
    with pytest.raises(sqlite3.IntegrityError):
        store.add(one)


def test_many_threads_may_write(tmp_path: Path) -> None:
    store = TrajectoryStore(tmp_path / "s.sqlite")
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: store.add(run(str(number))), range(100)))
    assert len(store) == 100


_WRITER = """
import sys
from art_langgraph import Scenario, Trajectory, TrajectoryStore
store = TrajectoryStore(sys.argv[1])
while True:
    one = Trajectory(scenario=Scenario(input="x"))
    store.add(one)
    print(one.id, flush=True)
"""


def test_a_kill_loses_nothing_that_was_added(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    writer = subprocess.Popen([sys.executable, "-c", _WRITER, str(path)], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    ids = [writer.stdout.readline().strip() for _ in range(20)]
    os.kill(writer.pid, signal.SIGKILL)
    ids += writer.communicate()[0].split()
    store = TrajectoryStore(path)
    assert all(store.get(one) is not None for one in ids)
