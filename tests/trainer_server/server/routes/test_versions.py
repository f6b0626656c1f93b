"""Versions over HTTP: exports that nobody reads, and requests that name what cannot be."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from starlette.types import Message

from tests.support.homes.versions import publish
from tests.support.patience import PATIENCE
from tests.support.servers.trainer_server import TrainerServer
from trainer_server.common import Home
from trainer_server.policies.export import Export
from trainer_server.policies.store import AdapterStore
from trainer_server.server.app import create_app
from trainer_server.server.config import ServerConfig
from trainer_server.server.routes import versions
from trainer_server.server.routes.versions import ExportResponse
from trainer_server.wire import EngineError, PolicySpec


@pytest.fixture
def export(tmp_path: Path) -> Export:
    directory = tmp_path / "exports" / "0a" / "peft"
    directory.mkdir(parents=True)
    (directory / "adapter_model.safetensors").write_bytes(bytes(5000))
    return Export(directory)


SCOPE = {"type": "http", "method": "GET", "path": "/", "headers": [], "asgi": {"spec_version": "2.4"}}


async def stays() -> Message:
    await asyncio.sleep(600)
    raise AssertionError


async def gone() -> Message:
    return {"type": "http.disconnect"}


async def test_an_export_is_deleted_once_it_is_sent(export: Export) -> None:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    await ExportResponse(export)(dict(SCOPE), stays, send)
    assert sum(len(message.get("body", b"")) for message in sent) == int(dict(sent[0]["headers"])[b"content-length"])
    assert not export.directory.parent.exists()


async def test_an_export_whose_client_left_before_its_first_byte_is_deleted(export: Export) -> None:
    async def send(message: Message) -> None:
        raise OSError("the connection is closed")

    with pytest.raises(Exception):  # noqa: B017, PT011 - what the server makes of a lost connection, its version decides
        await ExportResponse(export)(dict(SCOPE), gone, send)
    assert not export.directory.parent.exists()


async def test_an_export_that_its_client_does_not_take_is_deleted(
    export: Export, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(versions, "_SEND_TIMEOUT", 0.01)

    async def send(message: Message) -> None:
        await asyncio.sleep(600)

    with pytest.raises(BaseException):  # noqa: B017, PT011
        await asyncio.wait_for(ExportResponse(export)(dict(SCOPE), stays, send), PATIENCE)
    assert not export.directory.parent.exists()


async def test_an_export_is_deleted_when_its_request_is_cancelled(export: Export) -> None:
    started = asyncio.Event()

    async def send(message: Message) -> None:
        started.set()
        await asyncio.sleep(600)

    sending = asyncio.create_task(ExportResponse(export)(dict(SCOPE), stays, send))
    await asyncio.wait_for(started.wait(), PATIENCE)
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)
    assert not export.directory.parent.exists()


def test_what_happens_to_a_version_meanwhile_is_said(
    tmp_path: Path, base_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = "tests.support.engines.letters:make"
    app = create_app(ServerConfig(Home(tmp_path), model=str(base_model), engine=engine), "token")
    server = app.state.server
    server.store.register(PolicySpec(name="p"), server.identity.base.name)
    for number in range(3):
        publish(server.store, "p", number)

    async def keeps(key: tuple[str, int]) -> None:
        raise EngineError("the engine does not unload p@1")

    monkeypatch.setattr(server.slots, "forget", keeps)
    http = TestClient(
        app, base_url="http://127.0.0.1", headers={"Authorization": "Bearer token"}
    )  # no `with`: nothing is started
    kept = http.delete("/api/policies/p/versions/1")
    assert (kept.status_code, kept.json()["error"]["message"]) == (503, "the engine does not unload p@1")

    def deleted(policy: str, version: int, score: float) -> None:
        shutil.rmtree(server.store.directory(policy, version))
        AdapterStore.score(server.store, policy, version, score)

    monkeypatch.setattr(server.store, "score", deleted)
    gone = http.put("/api/policies/p/versions/1/score", json={"score": 1.0})
    assert (gone.status_code, gone.json()["error"]["message"]) == (404, "p@1 was deleted meanwhile")
    assert not server.store.directory("p", 1).exists()


@pytest.mark.parametrize("number", ["-1", "9" * 300, "9" * 5000, "²", "07.0", "1e3", "abc", "%00", "..%2f0"])
def test_a_number_that_no_version_has_is_refused(server: TrainerServer, number: str) -> None:
    with server.http() as http:
        for answer in (
            http.get(f"/api/policies/agent/versions/{number}"),
            http.delete(f"/api/policies/agent/versions/{number}"),
            http.put(f"/api/policies/agent/versions/{number}/score", json={"score": 1.0}),
            http.get(f"/api/policies/agent/versions/{number}/export"),
        ):
            assert answer.status_code in (404, 405, 422), answer.text
            assert answer.json()["error"]["message"]


NAMES = ["agent@²", "agent@0", "a" * 5000, "..", "%00", "%ff", "\u00e4", "p.bak", "-x"]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_no_policy_has_is_refused(server: TrainerServer, name: str) -> None:
    body = {"groups": [{"scenario_id": "s", "trajectories": []}]}
    with server.http() as http:
        for answer in (
            http.get(f"/api/policies/{name}/versions"),
            http.get(f"/api/policies/{name}"),
            http.post(f"/api/policies/{name}/steps", json=body),
            http.get(f"/api/policies/{name}/steps", params={"idempotency_key": "k"}),
        ):
            assert answer.status_code in (404, 405), answer.text
        assert http.post("/api/policies", json={"name": name}).status_code in (201, 200, 422), name
    shutil.rmtree(server.home.policies / "p.bak", ignore_errors=True)


BODIES = [
    ("/api/policies", '{"name": "\\ud83d"}'),
    ("/api/policies", '{"name": "x", "\\ud83d": 1}'),
    ("/api/policies", '{"name": "x", "seed": 1e400}'),
    ("/api/policies", '{"name": "x", "rank": 999999999999999999999999999999}'),
    ("/api/policies", '{"name": "x", "targets": ["\\ud83d"]}'),
    ("/api/policies", '{"name": "x", "fork_of": {"policy": "agent", "version": ' + "9" * 300 + "}}"),
    ("/api/policies", '{"name": "x", "fork_of": {"policy": "agent", "version": 999999999}}'),
    ("/api/policies", "[" * 100_000),
    ("/api/policies", "\xff"),
    ("/api/policies/agent/steps", '{"groups": [{"scenario_id": "s", "trajectories": []}], "time_limit": -1}'),
    ("/api/policies/agent/steps", '{"groups": [], "config": {"loss_type": "\\ud83d"}}'),
    (
        "/api/policies/agent/steps",
        '{"groups": [{"scenario_id": "s", "trajectories": []}], "config": {"loss_type": "\\ud83d"}}',
    ),
    (
        "/api/policies/agent/steps",
        '{"groups": [{"scenario_id": "s", "trajectories": []}], "idempotency_key": "\\ud83d"}',
    ),
    (
        "/api/policies/agent/steps",
        '{"groups": [{"scenario_id": "s", "trajectories": []}], "config": {"num_iterations": 1000000000}}',
    ),
    ("/api/policies/agent/sft", '{"conversations": [{"messages": [{"role": "\\ud83d", "content": "x"}]}]}'),
    ("/api/rollouts/release", '{"a": 1}'),
    ("/api/rollouts/release", "[1, 2]"),
]


@pytest.mark.parametrize(("path", "body"), BODIES, ids=range(len(BODIES)))
def test_a_body_that_cannot_be_used_is_refused(server: TrainerServer, path: str, body: str) -> None:
    with server.http() as http:
        answer = http.post(path, content=body.encode("latin-1"), headers={"Content-Type": "application/json"})
        assert 400 <= answer.status_code < 500, answer.text
        assert answer.json()["error"]["message"]
        assert http.get("/health").status_code == 200


def test_odd_ids_of_rollouts_and_jobs_do_no_harm(server: TrainerServer) -> None:
    with server.http() as http:
        for odd in ("²", "%00", "%ff", "a" * 5000, "job-" + "9" * 300):
            assert http.delete(f"/api/rollouts/{odd}").status_code == 204
            assert http.get(f"/api/jobs/{odd}").status_code in (404, 422)
            assert http.post(f"/api/jobs/{odd}/cancel").status_code in (404, 422)
            assert http.get("/api/policies/agent/steps?idempotency_key=" + odd).status_code == 404


def test_listing_shows_what_is_damaged(server: TrainerServer) -> None:
    with server.http() as http:
        http.post("/api/policies", json={"name": "hurt"})
        versions_of = server.home.policies / "hurt" / "versions"
        shutil.copytree(versions_of / "0", versions_of / "7.bak")
        (versions_of / "7.bak" / "quarantined.json").write_text("{}")
        assert [one["version"] for one in http.get("/api/policies/hurt/versions").json()["versions"]] == [0]
        whole = (versions_of / "0" / "version.json").read_text()
        (versions_of / "0" / "version.json").write_text("{")
        assert http.get("/api/policies/hurt/versions").json()["versions"] == []
        shown = http.get("/api/policies/hurt/versions/0")
        assert shown.status_code == 404
        assert "hurt@0 cannot be used: its files are damaged" in shown.json()["error"]["message"]
        assert "damaged" in http.get("/api/policies/hurt").json()["quarantined"]["0"]
        assert http.get("/v1/models").status_code == 200
        (versions_of / "0" / "version.json").write_text(whole)
        assert [one["version"] for one in http.get("/api/policies/hurt/versions").json()["versions"]] == [0]
