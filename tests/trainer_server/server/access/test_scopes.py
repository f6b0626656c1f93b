"""Scopes: each route has one, and a token of a lesser scope is told so."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import APIRouter
from starlette.testclient import TestClient

from tests.support.servers.balancer import documented
from trainer_server.common import Home
from trainer_server.process.files import server_id
from trainer_server.server.access.auth import OPEN
from trainer_server.server.access.layers import TrainerRoutes
from trainer_server.server.access.scopes import RULES, answered_anywhere
from trainer_server.server.access.tokens import Scope, TokenRepository
from trainer_server.server.app import create_app
from trainer_server.server.config import ServerConfig


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    return Home(tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="module")
def app(home: Home, base_model: Path) -> Any:
    config = ServerConfig(home, model=str(base_model), engine="tests.support.engines.letters:make")
    return create_app(config, "key")


@pytest.fixture(scope="module")
def tokens(home: Home) -> dict[Scope, str]:
    return {scope: TokenRepository(home).create(f"{scope}-user", scope) for scope in Scope}


def routes(router: Any) -> Iterator[str]:
    """`METHOD path` of all routes below a router, also where FastAPI keeps included routers as they are."""
    for route in router.routes:
        if (included := getattr(route, "original_router", None)) is not None:
            yield from routes(included)
        else:
            yield from (f"{method} {route.path}" for method in route.methods)


def filled(path: str) -> str:
    return re.sub(r"{(\w+)(:path)?}", lambda found: "1" if found[1] == "number" else "x", path)


def test_every_route_of_the_app_declares_its_scope(app: Any) -> None:
    declared = set(routes(app))
    assert len(declared) > 50
    assert declared - RULES.keys() == set(), "routes without a rule: they would answer nobody"
    assert RULES.keys() - declared == set(), "rules without a route"


def test_the_routes_without_a_scope_are_those_that_need_no_token() -> None:
    open_paths = {rule.split(" ")[1] for rule, declared in RULES.items() if declared.scope is None}
    assert open_paths == {*OPEN, "/ui/static/{name:path}"} - {"/favicon.ico"}


def test_each_route_refuses_tokens_of_lesser_scopes(app: Any, tokens: dict[Scope, str]) -> None:
    http, asked = TestClient(app, base_url="http://127.0.0.1", follow_redirects=False), 0
    for name, rule in RULES.items():
        method, path = name.split(" ")
        for scope in Scope:
            if rule.scope is None or scope.covers(rule.scope):
                continue
            headers = {"Authorization": f"Bearer {tokens[scope]}"}
            answer = http.request(method, filled(path), headers=headers, content=b"{}")
            asked += 1
            assert answer.status_code == 403, name
            if method == "HEAD":  # its answer has no body
                continue
            assert method == "HEAD" or f"needs a token of scope {rule.scope}" in answer.text, name
            if not path.startswith("/ui") and path != "/":
                assert answer.json()["error"]["code"] == "scope_missing"
                assert f"'{scope}-user', of scope {scope}" in answer.json()["error"]["message"]
                assert f"tokens create NAME --scope {rule.scope}" in answer.json()["error"]["message"]
    assert asked >= 40


@pytest.mark.parametrize(
    ("scope", "method", "path", "status"),
    [
        (Scope.rollout, "GET", "/api/policies", 200),
        (Scope.rollout, "PUT", "/api/rollouts/mine", 422),
        (Scope.train, "GET", "/api/jobs", 200),
        (Scope.train, "GET", "/ui/runs", 200),
        (Scope.admin, "DELETE", "/api/policies/none/candidate", 404),
    ],
)
def test_a_scope_opens_its_routes_and_those_of_lesser_ones(
    app: Any, tokens: dict[Scope, str], scope: Scope, method: str, path: str, status: int
) -> None:
    http = TestClient(app, base_url="http://127.0.0.1")
    for holder in Scope:
        if holder.covers(scope):
            answer = http.request(method, path, headers={"x-api-key": tokens[holder]})
            assert answer.status_code == status, answer.text


def test_a_route_that_was_forgotten_answers_nobody(home: Home, base_model: Path) -> None:
    from fastapi import Depends

    from trainer_server.server.access.scopes import check_scope

    router = APIRouter()
    router.add_api_route("/api/new", lambda: "secret")
    config = ServerConfig(home, model=str(base_model), engine="tests.support.engines.letters:make")
    app = create_app(config, "key")
    app.include_router(router, dependencies=[Depends(check_scope)])
    answer = TestClient(app, base_url="http://127.0.0.1").get("/api/new", headers={"Authorization": "Bearer key"})
    assert answer.status_code == 403
    assert "GET /api/new has no entry in RULES" in answer.json()["error"]["message"]


TRAINER = "http://10.0.0.1:8400"


async def test_a_gateway_refuses_what_the_trainer_answers_before_it_reads_a_body() -> None:
    reached, sent = list[str](), list[Any]()

    async def app(scope: Any, _receive: Any, _send: Any) -> None:
        reached.append(scope["path"])

    async def receive() -> Any:
        raise AssertionError("the body was read")

    async def send(message: Any) -> None:
        sent.append(message)

    gateway = TrainerRoutes(app, TRAINER)
    for method, path in [
        ("POST", "/api/policies/p/steps"),
        ("GET", "/api/rollouts"),
        ("GET", "/api/rollouts/r/records/c"),
        ("POST", "/api/rollouts/erase"),
        ("GET", "/"),
        ("GET", "/api/unknown"),
    ]:
        await gateway({"type": "http", "method": method, "path": path, "headers": []}, receive, send)
        start, body = sent
        sent.clear()
        assert start["status"] == 421
        error = json.loads(body["body"])["error"]
        assert error["code"] == "not_the_trainer"
        assert TRAINER in error["message"]
        assert f"{method} {path} " in error["message"]
    assert reached == []
    for method, path in [("POST", "/rollouts/r/v1/responses"), ("POST", "/api/rollouts/r/reward"), ("GET", "/health")]:
        await gateway({"type": "http", "method": method, "path": path, "headers": []}, receive, send)
    assert reached == ["/rollouts/r/v1/responses", "/api/rollouts/r/reward", "/health"]


def test_what_changes_policies_or_shows_jobs_is_for_the_one_that_trains() -> None:
    for name, rule in RULES.items():
        method, path = name.split()
        if rule.action is not None and rule.action != "version.fetch":
            assert not answered_anywhere(method, path), name
    assert answered_anywhere("GET", "/api/policies/p/versions/3/files")
    assert not answered_anywhere("GET", "/api/rollouts/r/records/c")


def test_a_load_balancer_sends_no_request_to_a_gateway_that_it_refuses() -> None:
    (rule,) = re.findall(r"path_reg (\S+)", documented("HAProxy"))
    assert re.findall(r"location ~ (\S+) ", documented("nginx")) == [rule]
    anywhere = set()
    for name in RULES:
        method, path = name.split(" ")
        if re.search(rule, filled(path)):
            assert answered_anywhere(method, filled(path)), name
            anywhere.add(name)
    assert anywhere >= {name for name in RULES if " /v1/" in name or " /api/completions/" in name}
    assert anywhere >= {name for name, declared in RULES.items() if declared.scope is Scope.engine}
    assert {
        "PUT /api/rollouts/{rollout}",
        "POST /api/rollouts/{rollout}/reward",
        "POST /api/rollouts/release",
    } <= anywhere
    assert re.search(rule, "/rollouts/r/v1/chat/completions")


def test_a_gateway_answers_others_and_deletes_no_exports(tmp_path: Path, base_model: Path, postgres_url: str) -> None:
    home = Home(tmp_path)
    server_id(home)
    config = ServerConfig(home, model=str(base_model), engine="tests.support.engines.letters:make", ledger=postgres_url,
                          engine_urls=("http://127.0.0.1:1",), gateway_of=TRAINER)  # fmt: skip
    (tmp_path / "exports" / "0123").mkdir(parents=True)
    with TestClient(create_app(config, "key"), base_url="http://127.0.0.1") as http:
        assert http.post("/api/policies", json={"name": "p"}).status_code == 401, "nothing is told without a token"
        http.headers["Authorization"] = "Bearer key"
        assert http.post("/api/policies", json={"name": "p"}).json()["error"]["code"] == "not_the_trainer"
        assert http.get("/v1/models").status_code == 200
        told = http.get("/health").json()
        assert (told["leads"], told["trainer"]) == (False, False)
    assert (tmp_path / "exports" / "0123").exists(), "the server that trains may be sending it"
