"""Servers that share a database: a step is trained through it, one server serves, and another one takes over."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import unquote

import psutil
import pytest

from tests.support.jobs import ask, finish, groups, step, version_of
from tests.support.patience import PATIENCE
from tests.support.postgres import PASSWORD
from tests.support.processes import Processes, processes
from tests.support.trainer_server import trainer_server_on
from trainer_server.ledger.postgres import PostgresBooks, PostgresLedger


def command_lines(of: Processes) -> str:
    assert of.server is not None
    process = psutil.Process(of.server.pid)
    return " ".join(" ".join(one.cmdline()) for one in (process, *process.children(recursive=True)))


@pytest.mark.slow
def test_a_step_is_trained_through_postgres_and_its_runs_are_listed(
    tmp_path: Path, base_model: Path, postgres_url: str
) -> None:
    with trainer_server_on(tmp_path, base_model, ledger=postgres_url) as server, server.http() as http:
        assert isinstance(server.app.state.server.ledger, PostgresLedger)
        assert isinstance(server.app.state.server.books, PostgresBooks)
        assert http.post("/api/policies", json={"name": "p"}, timeout=900).status_code == 201
        refs = groups(http, 1.0, 0.0)
        job = finish(http, http.post("/api/policies/p/steps", json={"groups": refs}))
        assert job["status"] == "succeeded", job
        assert job["result"]["version"] == 1
        completion = ask(http, "say a", rollout="ro-1")
        assert http.post("/api/rollouts/ro-1/reward", json={"reward": 0.5}).status_code == 200
        record = http.get("/api/rollouts/ro-1").json()
        assert [one["id"] for one in record["completions"]] == [completion]
        assert (record["reward"], record["versions"]) == (0.5, {"p": [1]})
        listed = http.get("/api/rollouts", params={"policy": "p"}).json()
        assert [one["id"] for one in listed["rollouts"]] == ["ro-1"]
        assert "ro-1" in http.get("/ui/runs").text
        assert http.post("/api/rollouts/erase", json={"rollouts": ["ro-1"]}).json()["completions"] == 1
        assert http.get(f"/api/completions/{completion}").status_code == 404
    assert not server.home.ledger.exists()
    assert not server.home.rollouts.exists()


@pytest.mark.slow
def test_a_standby_takes_over_from_a_server_that_was_killed(
    tmp_path: Path, base_model: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ART_LEDGER", postgres_url)
    with processes(tmp_path / "home", base_model) as first:
        first.start()
        with first.http() as http:
            assert http.post("/api/policies", json={"name": "p"}).status_code == 201
            completion = ask(http, "say a", rollout="ro-1")
            assert step(http, "p") == 1
        deadline = time.monotonic() + PATIENCE
        second = first.another("--standby")
        try:
            while "on standby" not in second.log.read_text():
                assert second.server is not None
                assert second.server.poll() is None, second.log.read_text()
                assert time.monotonic() < deadline
                time.sleep(0.1)
            lines = [command_lines(first), command_lines(second)]
            assert sum(line.count("trainer_server.training") for line in lines) > 0
            assert lines[1].count("trainer_server.training") == 0
            third = [sys.executable, "-m", "trainer_server", "--home", str(tmp_path / "other"), "--model",
                     str(base_model), "--engine-url", "http://127.0.0.1:1", "--port", "0"]  # fmt: skip
            refused = subprocess.run(third, capture_output=True, text=True, timeout=PATIENCE)
            assert refused.returncode != 0
            said = " ".join((refused.stdout + refused.stderr).split())
            assert f"is used by another server (process {first.server.pid if first.server else 0} on" in said
            assert first.server is not None
            first.server.kill()
            first.server.wait(PATIENCE)
            second.until_ready()
            with second.http() as http:
                assert version_of(http, completion) == 0
                versions = [version_of(http, ask(http, "say b", rollout=one)) for one in ("ro-1", "ro-2")]
                assert versions == [0, 1], "a running rollout keeps its version"
                job = finish(http, http.post("/api/policies/p/steps", json={"groups": groups(http, 1.0, 0.0)}))
                assert job["status"] == "succeeded", job
            lines.append(command_lines(second))
            printed = "".join((*lines, said, first.log.read_text(), second.log.read_text()))
            for secret in (PASSWORD, unquote(postgres_url), postgres_url):
                assert secret not in printed
        finally:
            second.stop()
