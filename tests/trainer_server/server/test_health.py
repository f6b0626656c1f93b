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
