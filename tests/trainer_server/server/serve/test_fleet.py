"""Servers that share a database: one trains, gateways answer beside it, and any of them is killed and started again."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count, cycle
from pathlib import Path

import httpx
import psutil
import psycopg
import pytest

from tests.support.homes.jobs import answers, ask, finish, groups, step
from tests.support.patience import PATIENCE
from tests.support.servers.balancer import haproxy
from tests.support.servers.postgres import PASSWORD, PostgresServer, postgres_server
from tests.support.servers.processes import Processes, processes
from tests.support.servers.trainer_server import trainer_server_on
from trainer_server.ledger.postgres import PostgresBooks, PostgresLedger, TrainerLock


def command_lines(of: Processes) -> str:
    assert of.server is not None
    process = psutil.Process(of.server.pid)
    return " ".join(" ".join(one.cmdline()) for one in (process, *process.children(recursive=True)))


@pytest.mark.slow
def test_a_step_is_trained_through_postgres_and_its_runs_are_listed(
    tmp_path: Path, base_model: Path, postgres_url: str
) -> None:
    with trainer_server_on(tmp_path, base_model, ledger=postgres_url) as server, server.http() as http:
        assert isinstance(server.app.state.server.ledger, PostgresLedger)
        assert isinstance(server.app.state.server.books, PostgresBooks)
        assert http.post("/api/policies", json={"name": "p"}, timeout=900).status_code == 201
        refs = groups(http, 1.0, 0.0)
        job = finish(http, http.post("/api/policies/p/steps", json={"groups": refs}))
        assert job["status"] == "succeeded", job
        assert job["result"]["version"] == 1
        completion = ask(http, "say a", rollout="ro-1")
        assert http.post("/api/rollouts/ro-1/reward", json={"reward": 0.5}).status_code == 200
        record = http.get("/api/rollouts/ro-1").json()
        assert [one["id"] for one in record["completions"]] == [completion]
        assert (record["reward"], record["versions"]) == (0.5, {"p": [1]})
        listed = http.get("/api/rollouts", params={"policy": "p"}).json()
        assert [one["id"] for one in listed["rollouts"]] == ["ro-1"]
        assert "ro-1" in http.get("/ui/runs").text
        assert http.post("/api/rollouts/erase", json={"rollouts": ["ro-1"]}).json()["completions"] == 1
        assert http.get(f"/api/completions/{completion}").status_code == 404
    assert not server.home.ledger.exists()
    assert not server.home.rollouts.exists()


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, base_model: Path) -> Iterator[Fleet]:
    """A server that trains and a gateway of it, with one engine, over a database of their own."""
    with postgres_server() as database, pytest.MonkeyPatch.context() as patch:
        url = database.new_database()
        patch.setenv("ART_LEDGER", url)
        with processes(tmp_path_factory.mktemp("fleet") / "home", base_model) as first:
            options = "--adapter-slots", "2", "--keep-versions", "1"
            first.start(*options)
            with first.http() as http:
                assert http.post("/api/policies", json={"name": "p"}).status_code == 201
                assert http.post("/api/policies", json={"name": "q"}).status_code == 201
            second = first.another("--gateway-of", f"http://127.0.0.1:{first._port}", *options)
            try:
                second.until_ready()
                yield Fleet(database, url, [first, second])
            finally:
                second.stop()


@dataclass
class Fleet:
    database: PostgresServer
    url: str
    servers: list[Processes]
    """The one that trains, and its gateway."""

    def kill(self, at: int) -> None:
        process = self.servers[at].server
        assert process is not None
        process.kill()
        process.wait(PATIENCE)

    def revive(self, at: int) -> None:
        """Starts a server again that was killed, as its supervisor would."""
        self.servers[at].revive()
        self.servers[at].until_ready()

    def completions(self, rollout: str) -> list[tuple[str, int]]:
        """Ids and versions in the ledger."""
        with psycopg.connect(self.url) as db:
            query = "SELECT id, version FROM art_langgraph.completions WHERE rollout = %s AND status = 'complete'"
            return list(db.execute(query, (rollout,)))


class Caller:
    """A client that asks again, at the other server, when one is gone."""

    def __init__(self, fleet: Fleet) -> None:
        self._servers = cycle(fleet.servers)
        self.answered: list[str] = []
        self.failed = 0

    def ask(self, rollout: str, model: str = "p") -> str:
        body = {"model": model, "messages": [{"role": "user", "content": "say a"}], "max_tokens": 5}
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            try:
                with next(self._servers).http(timeout=60) as http:
                    answer = http.post("/v1/chat/completions", json=body, headers={"X-ART-Rollout": rollout})
                if answer.status_code == 200:
                    self.answered.append(answer.json()["id"])
                    return str(answer.json()["model"])
                assert answer.status_code in (503, 507), answer.text
            except httpx.TransportError:
                pass
            self.failed += 1
            time.sleep(0.05)
        raise TimeoutError(rollout)


@pytest.mark.slow
def test_a_rollout_has_one_version_whichever_server_its_calls_reach(fleet: Fleet) -> None:
    first, second = (server.http() for server in fleet.servers)
    with first, second:
        assert [http.get("/health").json()["leads"] for http in (first, second)] == [True, False]
        before = [answers(http, "p", **{"X-ART-Rollout": "ro-1"}) for http in (second, first)]
        refused = second.post("/api/policies/p/steps", json={"groups": []})
        assert (refused.status_code, refused.json()["error"]["code"]) == (421, "not_the_trainer")
        assert str(first.base_url).rstrip("/") in refused.json()["error"]["message"]
        assert step(first, "p") == 1
        lines = [command_lines(server) for server in fleet.servers]
        assert ["trainer_server.training" in line for line in lines] == [True, False]
        assert [answers(http, "p") for http in (second, first)] == ["p@1"] * 2, "both know of it once the job has ended"
        after = [answers(http, "p", **{"X-ART-Rollout": "ro-1"}) for http in (second, first, second)]
        assert before + after == ["p@0"] * 5
        assert [answers(http, "p", **{"X-ART-Rollout": "ro-2"}) for http in (first, second)] == ["p@1"] * 2
        assert first.delete("/api/rollouts/ro-1").status_code == 204
        assert answers(second, "p", **{"X-ART-Rollout": "ro-1"}) == "p@1", "released there, forgotten here"
        assert second.put("/api/rollouts/ro-3", json={"version": 0}).json()["policies"] == ["p", "q"]
        assert answers(first, "p", **{"X-ART-Rollout": "ro-3"}) == "p@0"
        promoted = first.put("/api/policies/p/promotion", json={"version": 0})
        assert promoted.json()["promoted"] == 0, promoted.text
        assert [answers(http, "p") for http in (second, first)] == ["p@0"] * 2
        assert first.put("/api/policies/p/promotion", json={"version": None}).status_code == 200
        assert [len(fleet.completions(rollout)) for rollout in ("ro-1", "ro-2", "ro-3")] == [6, 2, 1]


@pytest.mark.slow
def test_a_version_stays_on_the_engine_while_another_server_has_a_call_on_it(fleet: Fleet) -> None:
    first, second = (server.http() for server in fleet.servers)
    engine = f"http://127.0.0.1:{fleet.servers[0]._engine_port}"
    with first, second, ThreadPoolExecutor() as pool:
        httpx.post(f"{engine}/state", json={"released": False})
        body = {"model": "p@0", "messages": [{"role": "user", "content": "when released say a"}], "max_tokens": 5}
        under_way = pool.submit(second.post, "/v1/chat/completions", json=body)
        until(lambda: second.get("/metrics").text.count("art_chats_under_way 1.0") == 1)
        for model in ("p@1", "q@0", "p@1", "q@0"):  # two slots: one of these makes room for the other
            assert answers(first, model) == model
            assert "p@0" in loaded(engine)
        refused = first.delete("/api/policies/p/versions/0")
        assert refused.status_code == 409, refused.text
        assert not under_way.done()
        httpx.post(f"{engine}/state", json={"released": True})
        assert under_way.result(PATIENCE).json()["model"] == "p@0"
        assert len(loaded(engine)) == 2


@pytest.mark.slow
def test_a_version_that_a_rollout_of_another_server_holds_is_not_deleted(fleet: Fleet) -> None:
    first, second = (server.http() for server in fleet.servers)
    with first, second:
        newest = step(first, "p")
        assert answers(second, "p", **{"X-ART-Rollout": "ro-kept"}) == f"p@{newest}"
        assert step(first, "p") == newest + 1
        gone = f"/api/policies/p/versions/{newest}"
        assert first.delete(gone).status_code == 409
        assert answers(first, "p", **{"X-ART-Rollout": "ro-kept"}) == f"p@{newest}"
        assert second.delete("/api/rollouts/ro-kept").status_code == 204
        assert first.delete(gone).status_code in (204, 404), "404: the next sweep had it"
        assert second.post("/v1/chat/completions", json={"model": f"p@{newest}"}).status_code in (400, 404)


@pytest.mark.slow
def test_each_server_is_killed_and_started_again_and_no_rollout_changes_its_version(fleet: Fleet) -> None:
    with ThreadPoolExecutor() as pool:
        callers, versions = [Caller(fleet) for _ in range(3)], defaultdict[str, set[str]](set)
        stop = threading.Event()

        def call(caller: Caller, number: int) -> None:
            for turn in count():
                if stop.is_set():
                    return
                rollout = f"killed-{number}-{turn // 6}"
                versions[rollout].add(caller.ask(rollout))

        running = [pool.submit(call, caller, number) for number, caller in enumerate(callers)]
        try:
            with fleet.servers[0].http() as http:
                newest = step(http, "p")
            fleet.kill(1)
            enough(callers)
            fleet.revive(1)
            with fleet.servers[0].http() as http:
                made = http.post("/api/policies/p/steps", json={"groups": groups(http, 0.0, 1.0, model="p@latest")})
            fleet.kill(0)
            enough(callers)  # answered by the gateway
            fleet.revive(0)
            with fleet.servers[0].http() as http:
                assert finish(http, made)["result"]["version"] == newest + 1, "it goes on with its job"
            fleet.database.stop(signal.SIGKILL)
            time.sleep(1)
            fleet.database.start()
            enough(callers)
            with fleet.servers[0].http() as http:
                assert step(http, "p") == newest + 2, "the same server trains"
        finally:
            stop.set()
            for one in running:
                one.result(PATIENCE)
    assert {len(models) for models in versions.values()} == {1}
    recorded = [row for rollout in versions for row in fleet.completions(rollout)]
    ids = [one for one, _ in recorded]
    assert len(ids) == len(set(ids))
    assert {one for caller in callers for one in caller.answered} <= set(ids)
    extra = len(ids) - sum(len(caller.answered) for caller in callers)
    assert extra <= sum(caller.failed for caller in callers), "recorded, and killed before the client had its end"
    printed = "".join(server.log.read_text() for server in fleet.servers)
    assert all(secret not in printed for secret in (PASSWORD, fleet.url))


@pytest.mark.slow
def test_clients_behind_a_load_balancer_go_on_when_the_server_that_trains_is_killed(
    fleet: Fleet, tmp_path: Path
) -> None:
    first = fleet.servers[0]
    servers = [f"127.0.0.1:{server._port}" for server in fleet.servers]
    with (
        haproxy(tmp_path, servers) as url,
        httpx.Client(base_url=url, headers=first.http().headers, timeout=PATIENCE) as http,
        ThreadPoolExecutor() as pool,
    ):
        newest = step(http, "p")
        assert "".join(streamed(http, f"p@{newest}", "ro-balanced")) == "a"
        refs = groups(http, 0.0, 1.0, model="p@latest")
        fleet.kill(0)
        under_way = pool.submit(http.post, "/api/policies/p/steps", json={"groups": refs})
        for _ in range(12):
            assert answers(http, "p", **{"X-ART-Rollout": "ro-balanced"}) == f"p@{newest}"
        assert not under_way.done()
        fleet.revive(0)
        made = under_way.result(PATIENCE)
        assert finish(http, made)["result"]["version"] == newest + 1, "the balancer waits for the server that trains"
    assert len(fleet.completions("ro-balanced")) == 13


@pytest.mark.slow
def test_a_server_that_trains_and_loses_the_database_to_another_one_ends_with_an_error(fleet: Fleet) -> None:
    """The last test of the fleet: nobody trains afterwards."""
    other, process = TrainerLock(fleet.url, "/other"), fleet.servers[0].server
    with psycopg.connect(fleet.url, autocommit=True) as db:
        while not other.acquire():
            db.execute("SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'")
    assert process is not None
    assert process.wait(PATIENCE) == 1, "as supervisors start again"
    assert "another server trains since" in fleet.servers[0].log.read_text()
    with fleet.servers[1].http() as http:
        assert answers(http, "p").startswith("p@")
    other.release()


def streamed(http: httpx.Client, model: str, rollout: str) -> Iterator[str]:
    """The parts of an answer, as they come."""
    body = {"model": model, "messages": [{"role": "user", "content": "say a"}], "max_tokens": 5, "stream": True}
    with http.stream("POST", "/v1/chat/completions", json=body, headers={"X-ART-Rollout": rollout}) as answer:
        assert answer.status_code == 200, answer.read()
        lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
    assert lines[-1] == "[DONE]"
    for line in lines[:-1]:
        for choice in json.loads(line)["choices"]:
            yield choice["delta"].get("content") or ""


def enough(callers: Sequence[Caller]) -> None:
    """Returns when each caller has been answered some times more."""
    before = [len(caller.answered) for caller in callers]
    until(lambda: all(len(caller.answered) >= had + 8 for caller, had in zip(callers, before, strict=True)))


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def loaded(engine: str) -> set[str]:
    """The adapters on the engine."""
    return {model["id"] for model in httpx.get(f"{engine}/v1/models").json()["data"] if model.get("parent")}
