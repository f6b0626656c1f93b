"""Some chaos: kills, stops, a full disk, clock steps and too many connections; everything comes back."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.chaos.clock import Clock
from benchmarks.chaos.disk import Disk
from tests.support.patience import PATIENCE
from tests.support.servers.machines import line

for_root = pytest.mark.slow
"""Only root may do it, and `.ci/run` has an ordinary user run the fast tests."""
ASKED = "import time, datetime; print(time.time(), datetime.datetime.now().timestamp(), time.monotonic())"


@pytest.mark.slow
def test_after_some_chaos_everything_is_back_and_the_books_balance() -> None:
    line = [sys.executable, "-m", "benchmarks.chaos", "--json", "--minutes", "0.3", "--every", "3", "--stop", "3"]
    line += ["--cut", "6", "--rollouts", "8", "--connections", "1500"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=900)
    assert done.stdout, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["back"], done.stderr
    assert result["even"], done.stderr
    assert done.returncode == 0
    happened = result["happened"]
    assert sum(happened["kills"][role] for role in ("server", "engine", "trainer") if role in happened["kills"]) > 0
    for line in ("bad line", "cut"):
        assert "left out" in happened[line] or happened[line]["packets_lost"] > 0
    assert happened["flood"]["restarts"] == 0
    assert happened["flood"]["silent"] == 0
    statuses = happened["flood"]["statuses"]
    assert set(statuses) <= {"200", "429", "503"}
    assert sum(statuses.values()) + happened["flood"]["closed"] == 1500
    assert result["answered"] > 0
    assert result["steps"] > 0


def test_a_clock_is_stepped_for_one_process_alone(tmp_path: Path) -> None:
    clock = Clock(tmp_path)
    if clock.unavailable_reason:
        pytest.skip(clock.unavailable_reason)
    clock.step(-7200)
    env = {**os.environ, **clock.environment}
    told = subprocess.run([sys.executable, "-c", ASKED], env=env, capture_output=True, text=True, check=True).stdout
    wall, other, monotonic = map(float, told.split())
    assert abs(wall - (time.time() - 7200)) < 600
    assert abs(other - wall) < 60
    assert abs(monotonic - time.monotonic()) < 600


@for_root
def test_a_disk_is_full_for_a_while(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "disk")
    if disk.unavailable_reason:
        pytest.skip(disk.unavailable_reason)
    try:
        with disk.full(), pytest.raises(OSError, match="No space left"):
            (tmp_path / "disk" / "file").write_bytes(bytes(4096))
        (tmp_path / "disk" / "file").write_bytes(bytes(4096))
    finally:
        disk.unmount()
    assert not (tmp_path / "disk" / "file").exists()


@for_root
def test_a_line_delays_packets_loses_some_and_can_be_cut() -> None:
    with line(delay=0.05, loss=0.2) as link:

        def socket_at(host: str) -> socket.socket:
            made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            made.bind((host, 0))
            made.settimeout(PATIENCE)
            return made

        with (
            link.near.run(lambda: socket_at(link.near_host)) as near,
            link.far.run(lambda: socket_at(link.far_host)) as far,
        ):

            def arrived(count: int) -> int:
                """How many of the packets that are sent before one that arrives have arrived."""
                for number in range(count):
                    near.sendto(b"%d" % number, far.getsockname())
                link.set(loss=0.0, cut=False)
                near.sendto(b"last", far.getsockname())
                return len(list(iter(lambda: far.recv(100), b"last")))

            began = time.monotonic()
            assert 100 < arrived(200) < 200
            assert time.monotonic() - began >= 0.05
            assert arrived(50) == 50
            link.set(cut=True)
            assert arrived(50) == 0
