"""Retention as `serve` was asked for it."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from tests.support.homes.ledger_rows import row
from trainer_server.common import Home
from trainer_server.server.config import ServerConfig
from trainer_server.server.server import Server
from trainer_server.wire import GroupRef, Job, JobStatus, PolicySpec, RolloutSpec, RunTrace, StepRequest, TrajectoryRef


def test_completions_go_by_age_and_by_the_size_of_the_ledger(tmp_path: Path, base_model: Path) -> None:
    engine = "tests.support.engines.letters:make"
    for name, settings, left in (
        ("age", {"keep_days": 10.0}, ["new", "9 days"]),
        ("size", {"keep_days": 100.0, "keep_gib": 0.0}, []),
        ("neither", {"keep_days": 100.0, "keep_gib": None}, ["new", "9 days", "11 days"]),
    ):
        config = ServerConfig(Home(tmp_path / name), model=str(base_model), engine=engine, **settings)
        server, now = Server(config), time.time()
        ages = {"new": 0, "9 days": 9, "11 days": 11}
        asyncio.run(server.ledger.add(*(row(one, now - days * 86400) for one, days in ages.items())))
        server._purge_completions()
        assert sorted(server.ledger.read(list(ages))) == sorted(left), name
        server.ledger.close()


def test_a_start_with_a_clock_forty_days_ahead_deletes_nothing(
    tmp_path: Path, base_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = ServerConfig(Home(tmp_path), model=str(base_model), engine="tests.support.engines.letters:make")
    server = Server(config)
    asyncio.run(server.ledger.add(row("c")))
    server.rollouts.register("ro", RolloutSpec())
    server.runs.trace("ro", RunTrace.model_validate({"id": "tr", "scenario": {"id": "s"}, "started": 1.0}))
    job = server.jobs.queue.accept("create", "agent", spec=PolicySpec(name="agent"))
    server.jobs.queue.finish(
        Job(id=job.id, kind="create", policy="agent", status=JobStatus.failed, created=time.time())
    )
    (config.home.logs).mkdir()
    (config.home.logs / "vllm.log").write_text("a line")
    server.ledger.close()

    right = time.time
    monkeypatch.setattr(time, "time", lambda: right() + 40 * 86400)
    server = Server(config)
    for _ in range(3):
        asyncio.run(server._delete_old())
    assert server.ledger.read(["c"])
    assert server.rollouts.spec("ro") is not None
    assert server.runs.find_trace("ro") is not None
    assert server.jobs.queue.job(job.id) is not None
    assert (config.home.logs / "vllm.log").exists()
    server.ledger.close()


def test_traces_of_runs_that_an_open_job_names_stay(tmp_path: Path, base_model: Path) -> None:
    engine = "tests.support.engines.letters:make"
    server = Server(ServerConfig(Home(tmp_path), model=str(base_model), engine=engine, keep_traces_gib=0.0))
    rows = [row(f"completion of {run}").model_copy(update={"rollout": run}) for run in ("named", "other")]
    asyncio.run(server.ledger.add(*rows))
    for run in ("named", "other"):
        server.runs.trace(run, RunTrace.model_validate({"id": run, "scenario": {"id": "s"}, "started": 1.0}))
    trajectory = TrajectoryRef(id="named", reward=1.0, completions=["completion of named"])
    request = StepRequest(groups=[GroupRef(scenario_id="s", trajectories=[trajectory])])
    server.jobs.open.add(server.jobs.queue.accept("step", "agent", request=request))
    assert server._shed_traces() == 1
    assert [server.runs.find_trace(run) is not None for run in ("named", "other")] == [True, False]
    server.ledger.close()
