"""A rollout belongs to the token that used it first: others below scope train may do nothing with it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient

from tests.support.homes.ledger_rows import row
from trainer_server.common import Home
from trainer_server.ledger.postgres import PostgresBooks, PostgresLedger
from trainer_server.ledger.rollouts import RolloutRepository
from trainer_server.server.access.scopes import BEGIN, RULES
from trainer_server.server.access.tokens import Scope, TokenRepository
from trainer_server.server.app import create_app
from trainer_server.server.config import ServerConfig
from trainer_server.wire import RolloutSpec

TRACE: dict[str, Any] = {"id": "tr", "scenario": {"id": "s"}, "started": 1.0}
CHAT = {"model": "none", "messages": [{"role": "user", "content": "a"}]}

USES: dict[str, tuple[str, str, Any, dict[str, str]]] = {
    "PUT /api/rollouts/{rollout}": ("PUT", "/api/rollouts/ro", {"hints": {"agent": "lie"}, "temperature": 2}, {}),
    "GET /api/rollouts/{rollout}": ("GET", "/api/rollouts/ro", None, {}),
    "POST /api/rollouts/{rollout}/reward": ("POST", "/api/rollouts/ro/reward", {"reward": 1.0}, {}),
    "PUT /api/rollouts/{rollout}/trace": ("PUT", "/api/rollouts/ro/trace", TRACE, {}),
    "GET /api/rollouts/{rollout}/trace": ("GET", "/api/rollouts/ro/trace", None, {}),
    "DELETE /api/rollouts/{rollout}": ("DELETE", "/api/rollouts/ro", None, {}),
    "POST /api/rollouts/release": ("POST", "/api/rollouts/release", ["ro"], {}),
    "PUT /api/rollouts/{rollout}/records/{call}/{run}": ("PUT", "/api/rollouts/ro/records/c/r", {}, {}),
    "GET /api/rollouts/{rollout}/records/{call}": ("GET", "/api/rollouts/ro/records/c", None, {}),
    "POST /v1/chat/completions": ("POST", "/v1/chat/completions", CHAT, {"X-ART-Rollout": "ro"}),
    "POST /v1/responses": ("POST", "/rollouts/ro/v1/responses", {"model": "none", "input": "a"}, {}),
    "POST /v1/messages": ("POST", "/rollouts/ro/v1/messages", {**CHAT, "max_tokens": 9}, {}),
    "POST /v1/messages/count_tokens": ("POST", "/rollouts/ro/v1/messages/count_tokens", CHAT, {}),
    "POST /v1/completions": ("POST", "/rollouts/ro/v1/completions", {"model": "none", "prompt": "a"}, {}),
    "GET /v1/models": ("GET", "/rollouts/ro/v1/models", None, {}),
}
"""A request of each route that takes a rollout's id, but for `POST /api/rollouts/traces`."""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    return Home(tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="module")
def secrets(home: Home) -> dict[str, str]:
    book = TokenRepository(home)
    scopes = {"alice": Scope.rollout, "bob": Scope.rollout, "trainer": Scope.train, "boss": Scope.admin}
    return {name: book.create(name, scope) for name, scope in scopes.items()}


@pytest.fixture(scope="module")
def config(home: Home, base_model: Path) -> ServerConfig:
    return ServerConfig(home, model=str(base_model), engine="tests.support.engines.letters:make")


def clients(config: ServerConfig, secrets: dict[str, str]) -> Callable[[str], TestClient]:
    """A server that was just started, and its client for the holder of a token."""
    app = create_app(config, "key")
    return lambda name: TestClient(app, base_url="http://127.0.0.1", headers={"x-api-key": secrets[name]})


@pytest.fixture(scope="module")
def started(config: ServerConfig, secrets: dict[str, str]) -> Callable[[str], TestClient]:
    return clients(config, secrets)


def use(http: httpx.Client, route: str, rollout: str) -> httpx.Response:
    method, path, body, headers = USES[route]
    body = [rollout] if body == ["ro"] else body
    path = re.sub("/ro(?=/|$)", f"/{rollout}", path)
    return http.request(method, path, json=body, headers=dict.fromkeys(headers, rollout))


def refused(answer: httpx.Response) -> bool:
    return answer.status_code == 403 and "belongs to another token than 'bob'" in answer.text


def test_every_route_that_takes_the_id_of_a_rollout_is_tried() -> None:
    taking = {route for route in RULES if "{rollout}" in route or " /v1/" in route}
    assert taking | {"POST /api/rollouts/release"} == USES.keys()
    assert USES.keys() >= BEGIN
    in_the_body = {route for route in RULES if route.startswith("POST /api/rollouts/") and "{" not in route}
    assert in_the_body == {"POST /api/rollouts/release", "POST /api/rollouts/traces", "POST /api/rollouts/erase"}


@pytest.mark.parametrize("route", sorted(USES))
def test_another_token_is_refused_and_one_that_trains_is_not(started: Callable[[str], TestClient], route: str) -> None:
    rollout = f"ro-{sorted(USES).index(route)}"
    assert started("alice").put(f"/api/rollouts/{rollout}", json={"temperature": 0.5}).status_code == 200
    assert refused(use(started("bob"), route, rollout))
    assert started("alice").get(f"/api/rollouts/{rollout}").json()["temperature"] == 0.5
    for name in ("alice", "trainer", "boss"):
        assert use(started(name), route, rollout).status_code != 403, name


@pytest.mark.parametrize("route", sorted(BEGIN))
def test_the_first_use_decides_and_a_restart_changes_nothing(
    config: ServerConfig, secrets: dict[str, str], started: Callable[[str], TestClient], route: str
) -> None:
    rollout = f"first-{sorted(BEGIN).index(route)}"
    assert use(started("alice"), route, rollout).status_code != 403
    for http in (started("bob"), clients(config, secrets)("bob")):
        assert refused(http.put(f"/api/rollouts/{rollout}", json={}))


def test_of_many_traces_those_of_other_tokens_are_refused(started: Callable[[str], TestClient]) -> None:
    alice, bob = started("alice"), started("bob")
    assert alice.put("/api/rollouts/hers/trace", json=TRACE).status_code == 204
    assert refused(bob.get("/api/rollouts/tr/trace")), "by the id of its trajectory"
    taken = bob.post("/api/rollouts/traces", json={"traces": {"hers": {**TRACE, "id": "forged"}, "his": TRACE}}).json()
    assert taken["taken"] == 1
    assert list(taken["refused"]) == ["hers"]
    assert alice.get("/api/rollouts/hers/trace").json()["id"] == "tr"
    assert alice.get("/api/rollouts/his/trace").status_code == 403


def test_a_stored_response_is_continued_by_the_token_of_its_rollout(started: Callable[[str], TestClient]) -> None:
    assert started("alice").put("/api/rollouts/stored-hers", json={}).status_code == 200
    server = started("alice").app.state.server  # type: ignore[attr-defined]
    key = "chatcmpl-" + "0" * 32
    asyncio.run(server.ledger.add(row(key).model_copy(update={"rollout": "stored-hers"})))
    asked = {"model": "none", "input": "a", "previous_response_id": key.replace("chatcmpl-", "resp_")}
    assert refused(started("bob").post("/v1/responses", json=asked))
    assert refused(started("bob").post("/rollouts/his/v1/responses", json=asked)), "from a rollout of its own"
    for name in ("alice", "trainer"):
        assert started(name).post("/v1/responses", json=asked).status_code != 403


def test_a_completion_is_read_by_the_token_of_its_rollout(started: Callable[[str], TestClient]) -> None:
    assert started("alice").put("/api/rollouts/read-hers", json={}).status_code == 200
    server = started("alice").app.state.server  # type: ignore[attr-defined]
    asyncio.run(server.ledger.add(row("read").model_copy(update={"rollout": "read-hers"}), row("of-none")))
    for http in (started("alice"), started("trainer")):
        assert http.get("/api/completions/read").json()["id"] == "read"
        assert len(http.post("/api/completions/find", json={"ids": ["read", "of-none"]}).json()["completions"]) == 2
    assert refused(started("bob").get("/api/completions/read"))
    assert refused(started("bob").post("/api/completions/find", json={"ids": ["of-none", "read"]}))
    assert started("bob").get("/api/completions/of-none").status_code == 200


def test_a_release_of_many_releases_none_where_one_is_of_another_token(started: Callable[[str], TestClient]) -> None:
    started("alice").put("/api/rollouts/kept", json={})
    started("bob").put("/api/rollouts/own", json={})
    assert refused(started("bob").post("/api/rollouts/release", json=["own", "kept"]))
    assert started("bob").post("/api/rollouts/release", json=["own", "unknown"]).status_code == 204


def test_a_rollout_of_an_earlier_release_goes_on_with_every_token(started: Callable[[str], TestClient]) -> None:
    server = started("alice").app.state.server  # type: ignore[attr-defined]
    server.rollouts.register("registered-earlier", RolloutSpec(temperature=0.5))
    asyncio.run(server.ledger.add(row("earlier").model_copy(update={"rollout": "asked-earlier"})))
    for rollout in ("registered-earlier", "asked-earlier"):
        for name in ("alice", "bob"):
            http = started(name)
            assert http.put(f"/api/rollouts/{rollout}/trace", json=TRACE).status_code == 204
            assert http.post(f"/api/rollouts/{rollout}/reward", json={"reward": 1}).status_code == 200
    listed = started("boss").get("/api/rollouts", params={"limit": 1000}).json()["rollouts"]
    assert {"registered-earlier", "asked-earlier"} <= {one["id"] for one in listed}


def test_rollouts_that_only_sent_requests_are_not_listed(started: Callable[[str], TestClient]) -> None:
    use(started("alice"), "POST /v1/chat/completions", "asked-only")
    listed = started("boss").get("/api/rollouts", params={"limit": 1000}).json()["rollouts"]
    assert "asked-only" not in {one["id"] for one in listed}


def test_servers_of_one_database_agree_on_the_owner(postgres_url: str) -> None:
    """Each gateway of a fleet asks the database: whichever is asked first decides for all."""
    one, other = (RolloutRepository(PostgresBooks(postgres_url)) for _ in range(2))
    assert one.owners(["ro"]) == {}
    assert one.begin(["ro"], "alice", ()) == {"ro": "alice"}
    assert other.begin(["ro", "new", "old"], "bob", {"old"}) == {"ro": "alice", "new": "bob", "old": None}
    assert one.owners(["ro", "new", "old", "none"]) == {"ro": "alice", "new": "bob", "old": None}
    ledger = PostgresLedger(postgres_url)
    asyncio.run(ledger.add(row("c").model_copy(update={"rollout": "in-ledger"})))
    assert set(ledger.matching(rollouts=["in-ledger", "none"]).values()) == {"in-ledger"}
    ledger.close()
