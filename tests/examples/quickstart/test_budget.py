"""What a run of the quickstart spends: seconds by phase, processors by process, and memory."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest
from art_examples.quickstart.budget import Meter, budget, show_budget
from rich.console import Console
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from tests.support.servers.serving import serving
from trainer_server.common import Connection

SECONDS = {"ready": 20.0, "measuring": 30.0, "total": 80.0}
PHASES = {"rollout": 9.0, "train": 5.0, "swap": 0.5}
MIB = 2**20
BUSY = f"""
import time
held = b"x" * {64 * MIB}
while time.process_time() < 0.3:
    pass
print("busy no more", flush=True)
input()
"""


def row(**more: object) -> dict[str, object]:
    trainer = {"pack": 0.5, "old_logprobs": 0.0, "forward": 1.5, "backward": 2.5}
    return {"seconds": PHASES, "metrics": {"seconds": trainer}, **more}


def test_the_seconds_sum_to_the_whole_run() -> None:
    skipped = {"seconds": PHASES | {"train": 0.5}, "metrics": {}}
    spent = budget([row(), skipped], SECONDS, {})["seconds"]
    assert sum(spent.values()) == pytest.approx(80.0)
    assert (spent["trainer: forward"], spent["trainer: backward, update"]) == (1.5, 2.5)
    assert spent["trainer: start, queue, files"] == pytest.approx(1.0)
    assert spent["rest: report, export, between steps"] == pytest.approx(5.5)


def test_rollouts_are_divided_into_what_requests_and_processes_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1})
    one = {"processors": {"engine": 12.0, "client": 1.0, "trainer": 8.0}, "requests": {"prefill": 30.0, "decode": 90.0}}
    spent = budget([row(spent=one), row(spent=one), row()], SECONDS, {"engine": 3 * MIB, "client": MIB})
    assert spent["rollouts"] == {
        "requests": {"prefill": 60.0, "decode": 180.0},
        "processors": {"engine": 24.0, "client": 2.0, "waiting, or other programs": 2 * 27.0 - 26.0},
    }
    assert spent["peak_memory"] == {"engine": 3 * MIB, "client": MIB, "total": 4 * MIB}
    show_budget(Console(file=(shown := io.StringIO()), width=120), spent, 80.0)
    assert "requests: decode" in shown.getvalue()
    assert "MiB: engine 3, client 1, total 4" in shown.getvalue()


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="processes are looked at in /proc")
def test_processors_and_memory_are_counted_by_process_and_since_the_last_lap(tmp_path: Path) -> None:
    told = [None, {"decode": 2.0}, {"decode": 5.0}]

    def engines(request: Request) -> JSONResponse:
        return JSONResponse({"engines": [{"request_seconds": told.pop(0)}]})

    (tmp_path / "city_server.py").write_text(BUSY)
    with serving(Starlette(routes=[Route("/api/engines", engines)])) as url, Meter() as meter:
        server = Connection(url, "key")
        assert meter.lap(server)["requests"] == {}
        command = [sys.executable, str(tmp_path / "city_server.py")]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            process.stdout.readline()
            first = meter.lap(server)
            process.communicate("go on")
        second = meter.lap(server)
    assert first["processors"]["MCP server"] >= 0.2
    assert second["processors"]["MCP server"] == 0.0
    assert first["processors"]["client"] > 0.0
    assert (first["requests"], second["requests"]) == ({"decode": 2.0}, {"decode": 3.0})
    assert meter.peak_memory["MCP server"] >= 64 * MIB
    assert meter.peak_memory["client"] > MIB


def test_without_proc_there_are_no_processors_and_no_memory() -> None:
    spent = budget([row(spent={"processors": {}, "requests": {}})], SECONDS, {})
    assert (spent["rollouts"], spent["peak_memory"]) == ({"requests": {}, "processors": {}}, {"total": 0})
