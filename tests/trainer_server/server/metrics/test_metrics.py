"""`/metrics`: what is counted and looked up, and who may read it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from trainer_server.common import Home
from trainer_server.server.app import create_app
from trainer_server.server.config import ServerConfig
from trainer_server.wire import Job, JobStatus, StepResult

HOLDER = {"Authorization": "Bearer token"}
DASHBOARD = Path(__file__).parents[4] / "docs" / "grafana.json"


@pytest.fixture
def http(tmp_path: Path, base_model: Path) -> TestClient:
    engine = "tests.support.engines.letters:make"
    app = create_app(ServerConfig(Home(tmp_path), model=str(base_model), engine=engine), "token")
    return TestClient(app, base_url="http://127.0.0.1")


def series(http: TestClient) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """The value of each series by its name and labels."""
    answer = http.get("/metrics", headers=HOLDER)
    assert answer.headers["content-type"].startswith("text/plain")
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def test_it_needs_the_token(http: TestClient) -> None:
    assert http.get("/metrics").status_code == 401


def test_requests_are_counted_by_route_and_not_by_path(http: TestClient) -> None:
    for path in ("/api/jobs/job-1", "/api/jobs/job-2", "/nowhere/1", "/nowhere/2"):
        http.get(path, headers=HOLDER)
    http.get("/api/engines")
    found = {
        (dict(labels)["route"], dict(labels)["status"]): value
        for (name, labels), value in series(http).items()
        if name == "art_http_request_seconds_count"
    }
    routes = {route for route, _ in found if route.startswith("/api/jobs/{")}
    assert len(routes) == 1
    assert found[routes.pop(), "404"] == 2
    assert found["other", "404"] == 2
    assert found["other", "401"] == 1, "it was refused before its route was looked for"


def test_methods_of_anybody_make_no_series(http: TestClient) -> None:
    for number in range(20):
        http.request(f"X{number}", "/nowhere")
    methods = {dict(labels)["method"] for (name, labels) in series(http) if name == "art_http_request_seconds_count"}
    assert methods == {"other"}


async def test_completions_are_counted_when_they_are_recorded(http: TestClient) -> None:
    with http:
        name = http.get("/v1/models", headers=HOLDER).json()["data"][0]["id"]
        body = {"model": name, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
        answer = http.post("/v1/chat/completions", json=body, headers=HOLDER).json()
        found = series(http)
    assert found["art_completions_total", (("policy", ""), ("status", "complete"))] == 1
    assert found["art_tokens_total", (("kind", "sampled"), ("policy", ""))] == answer["usage"]["completion_tokens"]
    assert found["art_tokens_total", (("kind", "prompt"), ("policy", ""))] == answer["usage"]["prompt_tokens"]


def test_the_last_step_of_each_policy_is_shown(http: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def step(number: int, reward: float, status: JobStatus = JobStatus.succeeded) -> Job:
        result = StepResult(policy="a", version=number, metrics={"reward_mean": reward, "why": "x", "kl/ref": 0.5})
        return Job(
            id=f"job-{number}", kind="step", policy="a", status=status, created=0, result=result, seconds={"train": 2.0}
        )

    newest_first = [step(3, 0.9, JobStatus.running), step(2, 0.6), step(1, 0.3)]
    jobs = http.app.state.server.jobs  # type: ignore[attr-defined]
    monkeypatch.setattr(jobs, "newest", lambda limit: newest_first)
    found = series(http)
    labels = (("kind", "step"), ("policy", "a"))
    assert found["art_last_job", (labels[0], ("metric", "reward_mean"), labels[1])] == 0.6
    assert found["art_last_job", (labels[0], ("metric", "kl_ref"), labels[1])] == 0.5
    assert found["art_last_job_seconds", (labels[0], ("phase", "train"), labels[1])] == 2.0
    assert found["art_jobs", (labels[0], ("status", "succeeded"))] == 2


def test_seconds_of_jobs_and_prices_are_shown(http: TestClient) -> None:
    server = http.app.state.server  # type: ignore[attr-defined]
    for id in ("j-1", "j-2"):
        server._on_job_end(
            Job(
                id=id,
                kind="step",
                policy="agent",
                status=JobStatus.failed,
                created=0.0,
                seconds={"train": 1.5, "swap": 0.25},
            )
        )
    labels = (("kind", "step"), ("phase", "train"), ("policy", "agent"))
    assert series(http)["art_job_seconds_total", labels] == 3.0
    assert ("art_gpu_hour_price_usd", ()) not in series(http), "unknown is not 0"
    server.config = replace(server.config, billed_gpus=4, gpu_hour_price=2.5)
    assert (series(http)["art_gpus", ()], series(http)["art_gpu_hour_price_usd", ()]) == (4.0, 2.5)


def test_the_grafana_dashboard_asks_for_series_that_there_are(http: TestClient) -> None:
    named = http.get("/metrics", headers=HOLDER).text
    dashboard = json.loads(DASHBOARD.read_text())
    asked = {
        name
        for panel in dashboard["panels"]
        for target in panel["targets"]
        for name in re.findall(r"\bart_\w+", target["expr"])
    }
    assert len(asked) > 10
    for name in asked:
        family = re.sub(r"_(total|bucket|count|sum)$", "", name)
        assert re.search(rf"^# TYPE {family}(_total)? ", named, re.MULTILINE), name
