"""`GET /api/status`, the curves of a policy, and the trace of a run: what the terminal shows."""

from __future__ import annotations

import shutil
from pathlib import Path

import httpx
import pytest
from starlette.testclient import TestClient

from tests.support.homes.jobs import step
from tests.support.homes.versions import publish
from tests.support.servers.trainer_server import TrainerServer
from trainer_server.common import Home
from trainer_server.common.status import ServerStatus
from trainer_server.server.app import create_app
from trainer_server.server.config import ServerConfig
from trainer_server.wire import PolicySpec

HOLDER = {"Authorization": "Bearer token"}


def test_one_request_tells_everything(server: TrainerServer) -> None:
    assert httpx.get(f"{server.url}/api/status").status_code == 401
    with server.http() as http:
        http.post("/api/policies", json={"name": "status"})
        version = step(http, "status")
        asked = {"model": f"status@{version}", "messages": [{"role": "user", "content": "say x"}], "max_tokens": 9}
        for number, reward in enumerate((1.0, 0.0, 1.0, 1.0)):
            evaluated = f"held-{number}"
            http.put(f"/api/rollouts/{evaluated}", json={"evaluation": True, "scenario": "s"})
            http.post(f"/rollouts/{evaluated}/v1/chat/completions", json=asked)
            http.post(f"/api/rollouts/{evaluated}/reward", json={"reward": reward})
        status = ServerStatus.model_validate(http.get("/api/status").json())
        curves = http.get("/api/policies/status/curves").json()
    (policy,) = (one for one in status.policies if one.name == "status")
    assert (policy.newest, policy.promoted, status.ready, status.trainer) == (version, None, True, True)
    assert policy.held_out is not None
    assert (policy.held_out.version, policy.held_out.runs, policy.held_out.success) == (version, 4, 0.75)
    assert policy.last_step is not None
    assert (policy.last_step.kind, policy.last_step.status) == ("step", "succeeded")
    (traffic,) = (one for one in status.traffic if one.policy == "status")
    assert traffic.tokens > 0
    assert traffic.running == 0
    assert (status.line.running, status.line.waiting) == (0, 0)
    assert status.memory.parts["server"] > 1 << 20
    assert status.memory.parts["trainer"] > 1 << 20
    assert [one.state for one in status.engines] == ["ready"]
    assert curves["held-out success"]["y"] == [0.75]
    assert curves["held-out success"]["runs"] == [4]
    assert "low" not in curves["reward_mean"]


def test_a_trace_is_read_back_by_the_rollout_and_by_the_trajectory(server: TrainerServer) -> None:
    trace = {"id": "tr-read", "scenario": {"id": "s", "input": "x"}, "started": 1.0, "nodes": [{"started": 1.0}]}
    with server.http() as http:
        http.put("/api/rollouts/read-back/trace", json=trace)
        for name in ("read-back", "tr-read"):
            assert http.get(f"/api/rollouts/{name}/trace").json()["id"] == "tr-read"
        answer = http.get("/api/rollouts/nobody/trace")
    assert (answer.status_code, "no client told" in answer.json()["error"]["message"]) == (404, True)


def test_a_policy_that_cannot_be_served_is_in_the_log_of_serve(
    tmp_path: Path, base_model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One has the name of the base model, which would answer for it; of another, a file has taken the place."""
    config = ServerConfig(Home(tmp_path), model=str(base_model), engine="tests.support.engines.letters:make")
    server = create_app(config, "token").state.server
    base = server.identity.base.name
    for name in (base, "spoiled", "fine"):
        server.store.register(PolicySpec(name=name), base, server.fingerprint)
        publish(server.store, name, 0)
    shutil.rmtree(server.store.root / "spoiled" / "versions" / "0")
    (server.store.root / "spoiled" / "versions" / "0").touch()
    app = create_app(config, "token")
    assert app.state.server.names.unserved_policies.keys() == {base, "spoiled"}
    assert f"not served: policy '{base}' has the name of the base model, which answers requests for it" in caplog.text
    assert "not served: the files of policy 'spoiled' cannot be used" in caplog.text
    refused = TestClient(app, base_url="http://127.0.0.1").post("/api/policies", json={"name": base}, headers=HOLDER)
    assert refused.status_code == 400
    assert f"a policy was not created: '{base}' is the name of the base model" in caplog.text


def test_an_engine_that_starts_is_no_silence(tmp_path: Path, base_model: Path) -> None:
    config = ServerConfig(Home(tmp_path), model=str(base_model), engine="tests.support.engines.letters:make")
    client = TestClient(create_app(config, "token"), base_url="http://127.0.0.1")
    status = ServerStatus.model_validate(client.get("/api/status", headers=HOLDER).json())
    assert status.engines[0].state == "not ready"
    problem = next(problem for problem in status.problems if "is not ready yet: it starts" in problem.what)
    assert "engine.log" in problem.remedy


def test_each_problem_has_a_remedy(tmp_path: Path, base_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = ServerConfig(Home(tmp_path), model=str(base_model), engine="tests.support.engines.letters:make")
    app = create_app(config, "token")
    server = app.state.server
    server.failure = "EngineError: no disk"
    server.engines[0].failure = "it went away"
    server.admission.refusal_count = 3
    server.names.unserved_policies["old"] = "it was trained on another model"
    described = server.engines[0].describe()
    monkeypatch.setattr(server.engines[0], "describe", lambda: {**described, "missing": {"fp32 logits": ["m:f"]}})
    status = ServerStatus.model_validate(
        TestClient(app, base_url="http://127.0.0.1").get("/api/status", headers=HOLDER).json()
    )
    said = [problem.what for problem in status.problems]
    for part in (
        "no disk",
        "it went away",
        "trainer process does not run",
        "'old' is not served",
        "3 chats were",
        "without fp32 logits (it has not m:f",
    ):
        assert any(part in what for what in said), part
    assert all(problem.remedy for problem in status.problems)
    assert not status.ready
