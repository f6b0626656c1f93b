"""A server whose trainer is two processes: steps and warm starts through the API, and one of them killed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.conftest import trainer_server_on
from tests.trainer_server.test_training_api import finish, groups
from trainer_server.config import ServerConfig
from trainer_server.models import BaseModel
from trainer_server.trainer_process import command
from trainer_server.wire import Home

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


def test_two_processes_train_and_outlive_the_death_of_one(tmp_path: Path, base_model: Path) -> None:
    with (
        trainer_server_on(tmp_path / "home", base_model, trainer_processes=2, trainer_shard=True) as server,
        server.http() as http,
    ):
        assert http.post("/api/policies", json={"name": "p"}).status_code == 201
        body = {"groups": groups(http, 1.0, 0.0), "config": {"lr": 1e-3}}
        first = finish(http, http.post("/api/policies/p/steps", json=body))
        assert first["result"]["version"] == 1, first
        assert first["result"]["metrics"]["ranks"] == 2
        trainer: Any = server.app.state.server.trainer
        children = psutil.Process(trainer.process.pid).children(recursive=True)
        ranks = [one for one in children if "torch.distributed.run" not in one.cmdline()]
        assert len(ranks) == 2
        ranks[-1].kill()
        second = finish(http, http.post("/api/policies/p/steps", json={**body, "idempotency_key": "again"}))
        assert second["result"]["version"] == 2, second
        assert trainer.process.restarts == 1


def test_the_launcher_is_torchrun_or_accelerate(tmp_path: Path) -> None:
    base = BaseModel("base", str(tmp_path))
    several = command(ServerConfig(Home(tmp_path), trainer_processes=4, trainer_shard=True), base, "tok")
    assert "torch.distributed.run" in several
    assert "--nproc-per-node=4" in several
    assert several[-1] == "--shard"
    by_file = command(ServerConfig(Home(tmp_path), accelerate_config=tmp_path / "fsdp.yaml"), base, "tok")
    assert by_file[2:6] == ["accelerate.commands.launch", "--config_file", str(tmp_path / "fsdp.yaml"), "-m"]
    assert "torch.distributed.run" not in command(ServerConfig(Home(tmp_path)), base, "tok")
