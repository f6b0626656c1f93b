"""Deletion: of a rollout or a policy nothing is left in any file of the home."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import httpx
import pytest
from starlette.testclient import TestClient

from tests.support.cli import art
from tests.support.homes.files import files_with
from tests.support.homes.jobs import ask, finish
from tests.support.homes.ledger_rows import row
from tests.support.homes.versions import publish
from tests.support.patience import PATIENCE, until
from tests.support.servers.trainer_server import TrainerServer
from trainer_server.common import Home
from trainer_server.jobs.job_files import JobFile
from trainer_server.ledger.archive import Archive
from trainer_server.ledger.sqlite import SQLiteLedger
from trainer_server.server.app import create_app
from trainer_server.server.config import ServerConfig
from trainer_server.server.server import Server
from trainer_server.wire import Completion, Job, PolicySpec

MARK = "zebrafinch"
SPOKEN = [{"role": "user", "content": MARK}, {"role": "assistant", "content": MARK}]
WARM_START = {"conversations": [{"messages": SPOKEN}]}


class CountedLock(asyncio.Lock):
    """Counts who wanted it."""

    count = 0

    async def acquire(self) -> Literal[True]:
        self.count += 1
        return await super().acquire()


@asynccontextmanager
async def in_process(home: Path, base_model: Path) -> AsyncIterator[tuple[Server, httpx.AsyncClient]]:
    """A server with the policy `p`, whose trainer is not started: jobs stay queued."""
    config = ServerConfig(Home(home), model=str(base_model), engine="tests.support.engines.letters:make")
    app = create_app(config, "key")
    server: Server = app.state.server
    server.store.register(PolicySpec(name="p"), server.identity.base.name, server.fingerprint)
    publish(server.store, "p", 0)
    server.names.newest["p"] = 0
    transport, headers = httpx.ASGITransport(app), {"x-api-key": "key"}
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", headers=headers) as http:
        yield server, http


def train(http: httpx.Client, policy: str, mark: str, rollouts: list[str]) -> dict[str, Any]:
    """A step on two rollouts that were registered, rewarded and traced, and a warm start; all have the mark in them."""
    references = []
    for at, rollout in enumerate(rollouts):
        spec = {"scenario": {"id": f"s-{policy}", "input": mark, "metadata": {"note": mark}}}
        assert http.put(f"/api/rollouts/{rollout}", json=spec).status_code == 200
        completion = ask(http, f"say {mark}{at}", policy, rollout)
        reward = {"reward": float(at), "reason": f"because of {mark}"}
        assert http.post(f"/api/rollouts/{rollout}/reward", json=reward).status_code == 200
        trace = {"id": f"tr-{rollout}", "scenario": spec["scenario"], "started": 1.0, "output": mark, "error": mark}
        assert http.put(f"/api/rollouts/{rollout}/trace", json=trace).status_code == 204
        references.append({"id": f"tr-{rollout}", "reward": float(at), "completions": [completion]})
    body = {"groups": [{"scenario_id": "s", "trajectories": references}], "config": {"lr": 1e-3}}
    job = finish(http, http.post(f"/api/policies/{policy}/steps", json=body))
    assert job["status"] == "succeeded", job
    spoken = [{"role": "user", "content": mark}, {"role": "assistant", "content": mark}]
    finish(http, http.post(f"/api/policies/{policy}/sft", json={"conversations": [{"messages": spoken}]}))
    assert http.get("/ui/runs", headers={"Authorization": http.headers["Authorization"]}).status_code == 200
    assert http.get(f"/api/policies/{policy}/versions/1/export").status_code == 200
    return job


def searched(http: httpx.Client, mark: str) -> str:
    return http.get("/ui/runs", params={"q": mark}).text


@pytest.mark.slow
def test_of_a_deleted_rollout_nothing_is_left_in_the_home(server: TrainerServer) -> None:
    with server.http() as http:
        assert http.post("/api/policies", json={"name": "forgets"}).status_code == 201
        job = train(http, "forgets", f"{MARK}-runs", ["ro-forget-0", "ro-forget-1"])
        kept = ask(http, f"say {MARK}-kept", "forgets", "ro-kept")
        before = files_with(server.home.root, f"{MARK}-runs")
        assert any(name.startswith("ledger.sqlite") for name in before)
        assert any(name.startswith("rollouts.sqlite") for name in before)
        assert any(name.startswith("jobs/") for name in before)
        assert "ro-forget-0" in searched(http, "zebrafinch")

        body = {"rollouts": ["ro-forget-0", "ro-forget-1", "ro-unknown"]}
        erased = http.post("/api/rollouts/erase", json=body).json()
        assert (erased["completions"], erased["jobs"], erased["rewritten"]) == (2, 1, True)
        left = files_with(server.home.root, f"{MARK}-runs")
        assert {name.split("/")[0] for name in left} <= {"jobs"}, "the warm start's demonstrations belong to no rollout"
        assert all(job["id"] not in name for name in left)
        assert http.get("/api/rollouts/ro-forget-0").status_code == 404
        assert http.get(f"/api/jobs/{job['id']}").status_code == 404
        assert "ro-forget-0" not in searched(http, "zebrafinch")
        late = {
            "id": "tr-ro-forget-0",
            "scenario": {"id": "s", "input": MARK},
            "started": 1.0,
            "output": f"{MARK}-runs",
        }
        refused = http.put("/api/rollouts/ro-forget-0/trace", json=late)
        assert (refused.status_code, refused.json()["error"]["code"]) == (410, "deleted")
        assert http.get(f"/api/completions/{kept}").status_code == 200
        again = http.post("/api/rollouts/erase", json=body).json()
        assert (again["completions"], again["jobs"]) == (0, 0)

        assert http.delete("/api/rollouts/ro-kept").status_code == 204
        erased = http.delete("/api/policies/forgets").json()
        assert erased["versions"] == 3
        assert erased["completions"] == 1
        assert files_with(server.home.root, MARK) == []
        assert files_with(server.home.root, "forgets") == [
            name for name in files_with(server.home.root, "forgets") if name.startswith(("audit/", "logs/"))
        ]


@pytest.mark.slow
async def test_deletion_reaches_the_archive(server: TrainerServer) -> None:
    """Of a rollout, and of a policy with the rollouts in which it answered, whoever else answered in them."""
    long_ago = time.time() - 100 * 86400

    def old(one: str, policy: str, rollout: str) -> Completion:
        request = {"messages": [{"role": "user", "content": f"{MARK}-{rollout}"}]}
        return row(f"old-{one}", long_ago).model_copy(update={"policy": policy, "rollout": rollout, "request": request})

    with server.http() as http:
        assert http.post("/api/policies", json={"name": "archived"}).status_code == 201
        rows = [old("a", "archived", "ro-old"), old("b", "archived", "ro-both"), old("c", "agent", "ro-both")]
        ledger = SQLiteLedger(server.home.ledger)
        await ledger.add(*rows, old("d", "agent", "ro-kept"))
        done = art("ledger", "archive", "--months", "1", "--home", str(server.home.root))
        assert done.exit_code == 0, done.output
        await ledger.add(old("e", "agent", "ro-both").model_copy(update={"created": time.time()}))
        ledger.close()
        for rollout in ("ro-old", "ro-both", "ro-kept"):
            assert any(name.startswith("archive/") for name in files_with(server.home.root, f"{MARK}-{rollout}"))

        assert http.post("/api/rollouts/erase", json={"rollouts": ["ro-old"]}).json()["completions"] == 1
        assert files_with(server.home.root, f"{MARK}-ro-old") == []
        assert http.delete("/api/policies/archived").json()["completions"] == 3
        assert files_with(server.home.root, f"{MARK}-ro-both") == []
        assert files_with(server.home.root, f"{MARK}-ro-kept")
        with Archive(server.home.archive).hold_lock():
            refused = http.post("/api/rollouts/erase", json={"rollouts": ["ro-kept"]})
        assert refused.status_code == 503
        assert "ask again" in refused.json()["error"]["message"]
        assert http.post("/api/rollouts/erase", json={"rollouts": ["ro-kept"]}).json()["completions"] == 1
        assert files_with(server.home.root, f"{MARK}-ro-kept") == []


def test_a_deleted_policy_is_gone_and_its_name_stays_taken(server: TrainerServer) -> None:
    with server.http() as http:
        assert http.post("/api/policies", json={"name": "leaves"}).status_code == 201
        rollout = {"X-ART-Rollout": "ro-busy"}
        asked = {"model": "leaves", "messages": [{"role": "user", "content": "say a"}], "max_tokens": 9}
        assert http.post("/v1/chat/completions", json=asked, headers=rollout).status_code == 200
        refused = http.delete("/api/policies/leaves")
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "policy_in_use")
        assert "in use by a rollout" in refused.json()["error"]["message"]
        assert http.post("/v1/chat/completions", json=asked, headers=rollout).status_code == 200, (
            "it is served as before"
        )
        http.delete("/api/rollouts/ro-busy")

        assert http.delete("/api/policies/leaves").status_code == 200
        assert http.get("/api/policies/leaves").status_code == 404
        assert http.post("/v1/chat/completions", json=asked).status_code == 404
        assert "leaves" not in http.get("/v1/models").text
        again = http.post("/api/policies", json={"name": "leaves"})
        assert (again.status_code, again.json()["error"]["code"]) == (409, "policy_deleted")
        assert "choose another name" in again.json()["error"]["message"]
        assert http.delete("/api/policies/leaves").status_code == 404
        assert [path.name for path in (server.home.policies / "leaves").iterdir()] == ["deleted.json"]
        assert "leaves" not in server.app.state.server.store.names()


def test_the_turn_of_a_deleted_completion_is_continued_by_no_prompt(server: TrainerServer) -> None:
    with server.http() as http:

        def answered(*messages: dict[str, str]) -> dict[str, Any]:
            answer = http.post("/v1/chat/completions", json={"model": "agent", "messages": messages})
            row: dict[str, Any] = http.get(f"/api/completions/{answer.json()['id']}").json()
            return row

        spoken = {"role": "user", "content": "say what is deleted"}
        first = answered(spoken)
        later = (spoken, first["message"], {"role": "user", "content": "say b"})
        assert answered(*later)["continues"] == first["id"]
        erased = http.post("/api/rollouts/erase", json={"completions": [first["id"]]})
        assert erased.json()["completions"] == 1
        assert answered(*later)["continues"] is None


def test_an_open_job_keeps_what_it_needs(tmp_path: Path, base_model: Path) -> None:
    app = create_app(
        ServerConfig(Home(tmp_path), model=str(base_model), engine="tests.support.engines.letters:make"), "key"
    )
    server = app.state.server
    server.store.register(PolicySpec(name="p"), server.identity.base.name, server.fingerprint)
    publish(server.store, "p", 0)
    server.names.newest["p"] = 0
    made = row("c").model_copy(update={"policy": "p", "version": 0, "rollout": "ro"})
    asyncio.run(server.ledger.add(made))
    http = TestClient(app, base_url="http://127.0.0.1", headers={"x-api-key": "key"})
    reference = {"id": "t", "reward": 1.0, "completions": ["c"]}
    body = {"groups": [{"scenario_id": "s", "trajectories": [reference]}]}
    job = http.post("/api/policies/p/steps", json=body).json()["id"]  # the trainer is not started: it stays queued
    for answer in (http.post("/api/rollouts/erase", json={"rollouts": ["ro"]}), http.delete("/api/policies/p")):
        assert answer.status_code == 409
        assert f"{job} has not ended" in answer.json()["error"]["message"]
        assert "art-langgraph jobs cancel" in answer.json()["error"]["message"]
    assert server.names.newest == {"p": 0}
    assert "c" in server.ledger.read(["c"])


async def test_a_name_is_not_used_again_by_a_request_that_waits_for_the_deletion(
    tmp_path: Path, base_model: Path
) -> None:
    async with in_process(tmp_path, base_model) as (server, http):
        lock = server.creating["p"] = CountedLock()
        async with lock:
            deletion = asyncio.create_task(http.delete("/api/policies/p"))
            await until(lambda: lock.count == 2)
            creation = asyncio.create_task(http.post("/api/policies", json={"name": "p", "seed": 7}))
            await until(lambda: lock.count == 3)
        async with asyncio.timeout(PATIENCE):
            assert (await deletion).status_code == 200
            refused = await creation
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "policy_deleted")
        assert [path.name for path in (Home(tmp_path).policies / "p").iterdir()] == ["deleted.json"]


async def test_no_warm_start_is_accepted_once_its_policy_is_deleted(
    tmp_path: Path, base_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request was checked before the deletion began."""
    async with in_process(tmp_path, base_model) as (server, http):
        checked, gate, train = asyncio.Event(), asyncio.Event(), server.jobs.train

        async def train_later(*arguments: Any) -> Job:
            checked.set()
            await gate.wait()
            return await train(*arguments)

        monkeypatch.setattr(server.jobs, "train", train_later)
        warm_start = asyncio.create_task(http.post("/api/policies/p/sft", json=WARM_START))
        async with asyncio.timeout(PATIENCE):
            await checked.wait()
            assert (await http.delete("/api/policies/p")).status_code == 200
            gate.set()
            assert (await warm_start).status_code == 404
        assert files_with(tmp_path, MARK) == []


async def test_a_deletion_sees_the_warm_start_that_is_being_accepted(
    tmp_path: Path, base_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with in_process(tmp_path, base_model) as (server, http):
        gate, accept = threading.Event(), server.jobs.queue.accept

        def accept_later(*arguments: Any, **options: Any) -> JobFile:
            gate.wait(PATIENCE)
            return accept(*arguments, **options)

        monkeypatch.setattr(server.jobs.queue, "accept", accept_later)
        lock = server.jobs.acceptance = CountedLock()
        warm_start = asyncio.create_task(http.post("/api/policies/p/sft", json=WARM_START))
        await until(lambda: lock.count == 1)
        deletion = asyncio.create_task(http.delete("/api/policies/p"))
        await until(lambda: lock.count == 2 or deletion.done())
        gate.set()
        async with asyncio.timeout(PATIENCE):
            job, refused = await warm_start, await deletion
        assert (job.status_code, refused.status_code) == (202, 409)
        assert f"{job.json()['id']} has not ended" in refused.text
        assert server.names.newest == {"p": 0}


async def test_a_policy_stays_while_a_job_of_another_needs_its_completions(tmp_path: Path, base_model: Path) -> None:
    async with in_process(tmp_path, base_model) as (server, http):
        server.store.register(PolicySpec(name="q"), server.identity.base.name, server.fingerprint)
        publish(server.store, "q", 0)
        await server.ledger.add(row("c").model_copy(update={"policy": "p", "version": 0, "rollout": "ro"}))
        imitated = {"trajectories": [{"id": "t", "reward": 1.0, "completions": ["c"]}]}
        job = (await http.post("/api/policies/q/sft", json=imitated)).json()["id"]
        refused = await http.delete("/api/policies/p")
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "job_open")
        assert f"{job} has not ended" in refused.json()["error"]["message"]
        assert server.names.newest == {"p": 0}, "it is served as before"
        assert "c" in server.ledger.read(["c"])


async def test_no_job_is_accepted_while_a_run_that_it_may_need_is_deleted(
    tmp_path: Path, base_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with in_process(tmp_path, base_model) as (server, http):
        ledger = server.ledger
        assert isinstance(ledger, SQLiteLedger)
        await ledger.add(row("c").model_copy(update={"policy": "p", "version": 0, "rollout": "ro"}))
        gate, erase = threading.Event(), ledger.erase

        def erase_later(ids: Sequence[str]) -> bool:
            gate.wait(PATIENCE)
            return erase(ids)

        monkeypatch.setattr(ledger, "erase", erase_later)
        lock = server.jobs.acceptance = CountedLock()
        deletion = asyncio.create_task(http.post("/api/rollouts/erase", json={"rollouts": ["ro"]}))
        await until(lambda: lock.count == 1)
        imitated = {"trajectories": [{"id": "t", "reward": 1.0, "completions": ["c"]}]}
        warm_start = asyncio.create_task(http.post("/api/policies/p/sft", json=imitated))
        await until(lambda: lock.count == 2)
        assert not warm_start.done()
        gate.set()
        async with asyncio.timeout(PATIENCE):
            assert (await deletion).json()["completions"] == 1
            assert (await warm_start).status_code == 202


def test_what_a_client_says_of_a_run_decides_no_deletion(tmp_path: Path, base_model: Path) -> None:
    """A trace says that `pa` answered in a run of `pb`: the deletion of `pa` leaves that run as it is."""
    config = ServerConfig(Home(tmp_path), model=str(base_model), engine="tests.support.engines.letters:make")
    app = create_app(config, "key")
    server = app.state.server
    for name in ("pa", "pb"):
        server.store.register(PolicySpec(name=name), server.identity.base.name, server.fingerprint)
        publish(server.store, name, 0)
        server.names.newest[name] = 0
        made = row(f"c-{name}").model_copy(update={"policy": name, "version": 0, "rollout": f"ro-{name}"})
        asyncio.run(server.ledger.add(made))
    http = TestClient(app, base_url="http://127.0.0.1", headers={"x-api-key": "key"})
    for claimed in ("ro-pb", "ro-pa"):  # in a run of another policy, and where it is so
        call = {"id": "c-pb", "model": "pa@0", "version": 0, "started": 1.0}
        trace = {"id": f"tr-{claimed}", "scenario": {"id": "s"}, "started": 1.0, "completions": [call]}
        assert http.put(f"/api/rollouts/{claimed}/trace", json=trace).status_code == 204
    assert "ro-pb" in http.get("/ui/runs", params={"policy": "pa"}).text
    erased = http.delete("/api/policies/pa")
    assert (erased.status_code, erased.json()["rollouts"], erased.json()["completions"]) == (200, 1, 1)
    assert [row["id"] for row in http.get("/api/rollouts/ro-pb").json()["completions"]] == ["c-pb"]
    assert http.get("/api/rollouts/ro-pb/trace").json()["id"] == "tr-ro-pb"
    assert "ro-pb" in http.get("/ui/runs", params={"policy": "pb"}).text
    assert http.get("/api/rollouts/ro-pa").status_code == 404


def test_rows_of_another_server_decide_nothing_of_a_rollout_that_ran_here(tmp_path: Path, base_model: Path) -> None:
    """They were brought before the rollout ran, when nothing said whose it would be."""
    config = ServerConfig(Home(tmp_path), model=str(base_model), engine="tests.support.engines.letters:make")
    app = create_app(config, "key")
    server = app.state.server
    for name in ("pa", "pb"):
        server.store.register(PolicySpec(name=name), server.identity.base.name, server.fingerprint)
        publish(server.store, name, 0)
        server.names.newest[name] = 0

    def made(one: str, policy: str, rollout: str, server_id: str) -> Completion:
        values = {"policy": policy, "version": 0, "rollout": rollout, "server_id": server_id}
        return row(one).model_copy(update=values)

    own = server.identity.server_id
    brought = [made("c-brought", "pa", "ro-pb", "other"), made("c-alone", "pa", "ro-alone", "other")]
    recorded = [made("c-pb", "pb", "ro-pb", own), made("c-both-a", "pa", "ro-both", own)]
    asyncio.run(server.ledger.add(*brought, *recorded, made("c-both-b", "pb", "ro-both", own)))
    http = TestClient(app, base_url="http://127.0.0.1", headers={"x-api-key": "key"})
    assert http.post("/api/rollouts/ro-pb/reward", json={"reward": 1}).status_code == 200  # it names both policies
    assert "ro-pb" in http.get("/ui/runs", params={"policy": "pa"}).text
    erased = http.delete("/api/policies/pa").json()
    assert (erased["rollouts"], erased["completions"]) == (2, 4)
    left = http.get("/api/rollouts/ro-pb").json()
    assert ([row["id"] for row in left["completions"]], left["reward"]) == (["c-pb"], 1)
    assert "ro-pb" in http.get("/ui/runs", params={"policy": "pb"}).text
    for gone in ("ro-alone", "ro-both"):
        assert http.get(f"/api/rollouts/{gone}").status_code == 404


def test_a_ledger_that_cannot_delete_says_so(tmp_path: Path, base_model: Path) -> None:
    config = ServerConfig(
        Home(tmp_path),
        model=str(base_model),
        engine="tests.support.engines.letters:make",
        ledger="tests.support.homes.other_ledger:open_lines",
    )
    http = TestClient(create_app(config, "key"), base_url="http://127.0.0.1", headers={"x-api-key": "key"})
    answer = http.post("/api/rollouts/erase", json={"rollouts": ["ro"]})
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "ledger_keeps")
    assert "LinesLedger" in answer.json()["error"]["message"]
