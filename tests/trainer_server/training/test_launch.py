"""Ranks on one machine: what each of them is given, and that none outlives the others."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.support.patience import PATIENCE
from trainer_server.training.launch import launch, loopback

TELL = """
import json, os, pathlib, sys, time
store = pathlib.Path(os.environ["ART_RENDEZVOUS"])
about = dict(os.environ, pid=os.getpid(), mode=store.parent.stat().st_mode, parent=str(store.parent))
rank = os.environ["RANK"]
pathlib.Path(sys.argv[1], rank + ".tmp").write_text(json.dumps(about))
pathlib.Path(sys.argv[1], rank + ".tmp").rename(pathlib.Path(sys.argv[1], rank))
while len(list(pathlib.Path(sys.argv[1]).glob("[0-9]"))) < int(os.environ["WORLD_SIZE"]):
    time.sleep(0.01)
"""
"""Each rank writes what it was given, and waits until the others have done so."""


def run(where: Path, then: str, count: int = 2) -> int:
    return launch(count, [sys.executable, "-S", "-c", TELL + then, str(where)])


def given(where: Path, rank: int) -> dict[str, str]:
    return dict(json.loads((where / str(rank)).read_text()))


def gone(where: Path, rank: int) -> bool:
    return not psutil.pid_exists(int(given(where, rank)["pid"]))


def test_each_rank_knows_its_place_and_meets_the_others_where_nobody_else_can(tmp_path: Path) -> None:
    assert run(tmp_path, "") == 0
    first, second = given(tmp_path, 0), given(tmp_path, 1)
    assert [first[name] for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")] == ["0", "0", "2", "2"]
    assert [second[name] for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")] == ["1", "1", "2", "2"]
    assert first["ART_RENDEZVOUS"] == second["ART_RENDEZVOUS"]
    assert stat.S_IMODE(int(first["mode"])) == 0o700
    assert not Path(first["parent"]).exists(), "it is removed afterwards"
    assert {one["GLOO_SOCKET_IFNAME"] for one in (first, second)} == {loopback()}
    assert {one["NCCL_SOCKET_IFNAME"] for one in (first, second)} == {loopback()}
    assert psutil.net_if_addrs()[loopback()][0].address in ("127.0.0.1", "::1")


@pytest.mark.parametrize(
    ("then", "status"),
    [
        ("sys.exit(3) if rank == '1' else time.sleep(60)", 3),
        ("os.kill(os.getpid(), 9) if rank == '1' else time.sleep(60)", 137),
        ("None if rank == '0' else time.sleep(60)", 0),
        ("time.sleep(0.3) if rank == '0' else None", 0),
        ("sys.exit(4 if rank == '0' else 0)", 4),
    ],
)
def test_the_first_rank_or_one_that_fails_ends_the_others(tmp_path: Path, then: str, status: int) -> None:
    assert run(tmp_path, then) == status
    assert gone(tmp_path, 0)
    assert gone(tmp_path, 1)


def test_terminated_it_ends_its_ranks_and_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "waits.py").write_text(TELL + "time.sleep(60)")
    launcher = subprocess.Popen(
        [sys.executable, "-m", "trainer_server.training.launch", "2", "waits", str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    while not all((tmp_path / str(rank)).exists() for rank in range(2)):
        assert launcher.poll() is None
    launcher.send_signal(signal.SIGTERM)
    assert launcher.wait(PATIENCE) == 0
    assert gone(tmp_path, 0)
    assert gone(tmp_path, 1)
    assert not Path(given(tmp_path, 0)["parent"]).exists()
