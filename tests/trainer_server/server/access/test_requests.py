"""Ids of requests: taken or made, answered, and in every line that is about the request."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from trainer_server.common import Home
from trainer_server.process.logs import JSONLines, LogSettings, _note
from trainer_server.server.app import create_app
from trainer_server.server.config import ServerConfig

HOLDER = {"Authorization": "Bearer token"}


@pytest.fixture
def http(tmp_path: Path, base_model: Path) -> TestClient:
    engine = "tests.support.engines.letters:make"
    config = ServerConfig(Home(tmp_path), model=str(base_model), engine=engine, logs=LogSettings(requests=True))
    return TestClient(create_app(config, "token"), base_url="http://127.0.0.1", raise_server_exceptions=False)


def test_each_answer_has_the_id_of_its_request(http: TestClient) -> None:
    made = http.get("/health").headers["x-request-id"]
    assert made.startswith("req-")
    assert http.get("/health").headers["x-request-id"] != made
    assert http.get("/api/jobs", headers={"X-Request-Id": "mine-1"}).headers["x-request-id"] == "mine-1"
    for odd in ("a b", "x" * 200, "-", 'a"}'):
        assert http.get("/health", headers={"X-Request-Id": odd}).headers["x-request-id"].startswith("req-")


def test_what_is_logged_of_a_request_names_it_and_its_rollout(
    http: TestClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.handler.addFilter(_note)
    with caplog.at_level(logging.INFO):
        http.get("/rollouts/ro-7/v1/models", headers={**HOLDER, "X-Request-Id": "mine-1"})
        http.get("/v1/models", headers={**HOLDER, "X-Request-Id": "mine-2", "X-ART-Rollout": "ro-8"})
        http.get("/api/rollouts/ro-9", headers={**HOLDER, "X-Request-Id": "mine-3"})
        http.get("/health", headers={"X-Request-Id": "mine-4", "X-ART-Rollout": "no\tid"})
        http.post("/api/rollouts/traces", headers={**HOLDER, "X-Request-Id": "mine-5"}, json={"traces": []})
    found = [record for record in caplog.records if record.name == "trainer_server.requests"]
    assert [(vars(one)["request_id"], vars(one).get("rollout_id"), vars(one)["status"]) for one in found] == [
        ("mine-1", "ro-7", 200),
        ("mine-2", "ro-8", 200),
        ("mine-3", "ro-9", 404),
        ("mine-4", None, 200),
        ("mine-5", None, 422),
    ]
    assert '"path": "/api/rollouts/ro-9"' in JSONLines().format(found[2])


def test_a_line_from_inside_a_request_names_it(
    http: TestClient, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.handler.addFilter(_note)
    server = http.app.state.server  # type: ignore[attr-defined]

    def broken(limit: int, status: object) -> None:
        logging.getLogger("trainer_server").warning("in a thread")
        raise RuntimeError("broken")

    monkeypatch.setattr(server.jobs, "newest", broken)
    answer = http.get("/api/jobs", headers={**HOLDER, "X-Request-Id": "mine-5"})
    assert (answer.status_code, answer.headers["x-request-id"]) == (500, "mine-5")
    assert answer.json()["error"]["message"].endswith("RuntimeError. Its log has more, under mine-5")
    (failed,) = (record for record in caplog.records if record.exc_info)
    assert vars(failed)["request_id"] == "mine-5"
    (line,) = (record for record in caplog.records if record.getMessage() == "in a thread")
    assert vars(line)["request_id"] == "mine-5"
