"""A policy's name means its newest version until a version is promoted, and `name@latest` the newest in any case."""

from __future__ import annotations

import asyncio
import logging
import sys
from pathlib import Path

import pytest

from art_langgraph import TrainerClient
from tests.support.homes.jobs import answers, ask, step, version_of
from tests.support.patience import PATIENCE
from tests.support.servers.trainer_server import TOKEN, TrainerServer, trainer_server_on
from trainer_server.jobs import trainer_process
from trainer_server.server.routes import policies
from trainer_server.wire import PolicySpec


@pytest.mark.slow
def test_a_promoted_version_is_served_while_newer_ones_come(tmp_path: Path, base_model: Path) -> None:
    with trainer_server_on(tmp_path, base_model) as server, server.http() as http:
        assert http.post("/api/policies", json={"name": "p"}).json()["promoted"] is None
        assert step(http, "p") == 1
        begun = ask(http, "say x", "p", "r")
        promoted = http.put("/api/policies/p/promotion", json={"version": 0}).json()
        assert (promoted["latest"], promoted["promoted"]) == (1, 0)
        assert (version_of(http, begun), answers(http, "p", **{"X-ART-Rollout": "r"})) == (1, "p@1"), "it keeps its own"
        assert [answers(http, name) for name in ("p", "p@latest", "p@1")] == ["p@0", "p@1", "p@1"]
        assert step(http, "p") == 2
        assert "p@latest" in [model["id"] for model in http.get("/v1/models").json()["data"]]
        assert [answers(http, name) for name in ("p", "p@latest")] == ["p@0", "p@2"]
        pinned = {"X-ART-Rollout": "s", "X-ART-Version": "p=latest"}
        assert answers(http, "p", **pinned) == "p@2"
        pinned = {"X-ART-Rollout": "t", "X-ART-Version": "1"}
        assert answers(http, "p@latest", **pinned) == "p@1", "@latest fixes no version"
        refused = http.delete("/api/policies/p/versions/0")
        assert (refused.status_code, "p@0 is promoted" in refused.text) == (409, True)
    with trainer_server_on(tmp_path, base_model) as server, server.http() as http:
        assert [answers(http, name) for name in ("p", "p@latest")] == ["p@0", "p@2"], "also after a restart"
        assert http.put("/api/policies/p/promotion", json={"version": None}).json()["promoted"] is None
        assert answers(http, "p") == "p@2"


@pytest.mark.parametrize(
    ("policy", "body", "status"),
    [
        ("agent", {"version": 99}, 404),
        ("agent", {}, 422),
        ("agent", {"version": -1}, 422),
        ("nobody", {"version": 0}, 404),
    ],
)
def test_what_cannot_be_promoted_is_refused(
    server: TrainerServer, policy: str, body: dict[str, int], status: int
) -> None:
    with server.http() as http:
        assert http.put(f"/api/policies/{policy}/promotion", json=body).status_code == status
        assert http.get("/api/policies/agent").json()["promoted"] is None


async def test_clients_are_told_that_the_trainer_does_not_start(
    tmp_path: Path, base_model: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    line = [sys.executable, "-c", "raise SystemExit('RuntimeError: no such kernel')"]
    monkeypatch.setattr(trainer_process, "command", lambda settings: line)
    monkeypatch.setattr(policies, "_POLL_INTERVAL", 0.2)
    with trainer_server_on(tmp_path, base_model) as server, server.http() as http:
        refused = await asyncio.to_thread(http.post, "/api/policies", json={"name": "p"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "trainer_not_ready")
        assert "policy 'p' cannot be made now: the trainer ended with status 1" in refused.text
        assert "no such kernel" in refused.text
        (job,) = http.get("/api/jobs").json()["jobs"]
        assert job["status"] == "queued"
        async with TrainerClient(server.url, TOKEN) as client:
            waiting = asyncio.create_task(client.wait(await client.job(job["id"]), progress="waiting"))
            async with asyncio.timeout(PATIENCE):
                while "stays open, and waits: the trainer ended" not in caplog.text:
                    await asyncio.sleep(0.05)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
    assert len([one for one in caplog.records if one.levelno == logging.WARNING and "stays open" in one.message]) == 1


def test_a_policy_of_an_older_release_is_found_by_a_request_that_names_no_targets() -> None:
    old = PolicySpec(name="p", targets=("q_proj", "v_proj"))
    assert policies._with_targets_of(old, PolicySpec(name="p")) == old
    assert policies._with_targets_of(old, PolicySpec(name="p", rank=16)) != old
    assert policies._with_targets_of(old, PolicySpec(name="p", targets=("q_proj",))) != old
