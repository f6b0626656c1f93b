"""`/health` and `/ready`: what they say of a server that cannot work, and to whom."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.support.engines.letters import LettersEngine
from trainer_server.common import Home
from trainer_server.jobs.trainer_process import TrainerProcess
from trainer_server.process.hardware import gpu_count
from trainer_server.server.access.tokens import Scope, TokenRepository
from trainer_server.server.app import create_app
from trainer_server.server.config import ServerConfig


@pytest.fixture
def http(tmp_path: Path, base_model: Path) -> TestClient:
    engine = "tests.support.engines.letters:make"
    app = create_app(ServerConfig(Home(tmp_path), model=str(base_model), engine=engine), "token")
    return TestClient(app, base_url="http://127.0.0.1")  # no `with`: nothing is started


HOLDER = {"Authorization": "Bearer token"}


def test_a_trainer_that_cannot_be_started_is_said(http: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    assert http.get("/health", headers=HOLDER).json()["error"] is None
    monkeypatch.setattr(TrainerProcess, "failure", "the trainer ended with status 2 before it was ready: why")
    said = http.get("/health", headers=HOLDER).json()["error"]
    assert said == "the trainer ended with status 2 before it was ready: why"


def test_without_the_token_nothing_is_told_but_readiness(http: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TrainerProcess, "failure", "the end of /home/me/trainer.log: token hf_secret")
    for headers in ({}, {"Authorization": "Bearer wrong"}):
        assert http.get("/health", headers=headers).json() == {"ready": False}
        assert http.get("/ready", headers=headers).json() == {"ready": False}


def test_ready_has_the_status_that_probes_look_at(http: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    assert http.get("/ready").status_code == 503
    (engine,) = http.app.state.server.engines  # type: ignore[attr-defined]
    assert isinstance(engine, LettersEngine)
    engine.ready = True
    assert http.get("/ready").status_code == 200


@pytest.mark.parametrize("path", ["/ready", "/health"])
def test_holders_of_the_token_are_told_the_parsers(http: TestClient, path: str) -> None:
    told = http.get(path, headers=HOLDER).json()
    assert (told["tool_parser"], told["reasoning_parser"]) == (None, None)


def test_holders_of_the_token_are_told_how_many_requests_the_engines_compute_at_once(
    http: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert http.get("/health", headers=HOLDER).json()["concurrency"] is None
    (engine,) = http.app.state.server.engines  # type: ignore[attr-defined]
    facts = engine.describe()
    monkeypatch.setattr(engine, "describe", lambda: {**facts, "max_num_seqs": 24})
    assert http.get("/health", headers=HOLDER).json()["concurrency"] == 24


def test_holders_of_the_token_are_told_what_is_paid_for(http: TestClient) -> None:
    server = http.app.state.server  # type: ignore[attr-defined]
    told = http.get("/health", headers=HOLDER).json()
    assert (told["gpus"], told["gpu_hour_price"]) == (gpu_count(), None)
    server.config = replace(server.config, billed_gpus=4, gpu_hour_price=2.5)
    told = http.get("/health", headers=HOLDER).json()
    assert (told["gpus"], told["gpu_hour_price"]) == (4, 2.5)
    server.config = replace(server.config, billed_gpus=None, engine_urls=("http://elsewhere:8000",))
    assert http.get("/health", headers=HOLDER).json()["gpus"] is None


@pytest.mark.parametrize(
    ("changes", "overlaps"),
    [
        ({}, False),
        ({"engine_gpus": ("0", "1,2"), "trainer_gpus": "3"}, True),
        ({"engine_gpus": ("0", "1,2"), "trainer_gpus": "2,3"}, False),
        ({"engine_gpus": ("0",)}, False),  # the trainer takes all
        ({"engine_urls": ("http://elsewhere:8000",)}, True),
        ({"engine_urls": ("http://elsewhere:8000",), "share_gpu": True}, False),
    ],
)
def test_engines_and_trainer_overlap_on_gpus_of_their_own(
    http: TestClient, changes: dict[str, Any], overlaps: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = http.app.state.server  # type: ignore[attr-defined]
    server.config = replace(server.config, **changes)
    monkeypatch.setattr("trainer_server.server.server.flavour", lambda: "cuda")
    assert http.get("/health", headers=HOLDER).json()["overlaps"] == overlaps
    monkeypatch.setattr("trainer_server.server.server.flavour", lambda: "cpu")
    assert not http.get("/health", headers=HOLDER).json()["overlaps"]


def test_a_task_that_cannot_go_on_is_said(http: TestClient) -> None:
    jobs = http.app.state.server.jobs  # type: ignore[attr-defined]
    for task in (jobs._task, jobs.retention._task, jobs.process._watch):
        task.failure = "the end of jobs: RuntimeError: unexpected"
        assert http.get("/health", headers=HOLDER).json()["error"] == "the end of jobs: RuntimeError: unexpected"
        task.failure = None
    assert http.get("/health", headers=HOLDER).json()["error"] is None


def test_reasons_which_quote_logs_are_told_to_tokens_that_see_the_runs_of_others(
    http: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = TokenRepository(http.app.state.server.config.home)  # type: ignore[attr-defined]
    monkeypatch.setattr(TrainerProcess, "failure", "the end of the log")
    for scope, said in ((Scope.rollout, None), (Scope.train, "the end of the log")):
        headers = {"Authorization": f"Bearer {book.create(scope, scope)}"}
        answer = http.get("/health", headers=headers).json()
        assert (answer["error"], answer["trainer"]) == (said, False)
