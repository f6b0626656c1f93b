"""`/health`: what it says of a server that cannot work."""

from __future__ import annotations

from pathlib import Path

import pytest
from starlette.testclient import TestClient

from trainer_server.jobs.supervisor import TrainerProcess
from trainer_server.server.app import create_app
from trainer_server.server.config import ServerConfig
from trainer_server.wire import Home


def test_a_trainer_that_cannot_be_started_is_said(
    tmp_path: Path, base_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = "tests.support.letters_engine:make"
    app = create_app(ServerConfig(Home(tmp_path), model=str(base_model), engine=engine), "token")
    http = TestClient(app)  # no `with`: nothing is started
    assert http.get("/health").json()["error"] is None
    monkeypatch.setattr(TrainerProcess, "failure", "the trainer ended with status 2 before it was ready: why")
    assert http.get("/health").json()["error"] == "the trainer ended with status 2 before it was ready: why"


def test_a_task_that_cannot_go_on_is_said(tmp_path: Path, base_model: Path) -> None:
    engine = "tests.support.letters_engine:make"
    app = create_app(ServerConfig(Home(tmp_path), model=str(base_model), engine=engine), "token")
    jobs = app.state.server.jobs
    http = TestClient(app)
    for task in (jobs.finisher._task, jobs.retention._task, jobs.process._watch):
        task.failure = "the end of jobs: RuntimeError: nobody expected this"
        assert http.get("/health").json()["error"] == "the end of jobs: RuntimeError: nobody expected this"
        task.failure = None
    assert http.get("/health").json()["error"] is None
