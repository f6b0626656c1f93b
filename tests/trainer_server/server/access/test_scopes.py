"""Scopes: each route has one, and a token of a lesser scope is told so."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import APIRouter
from starlette.testclient import TestClient

from trainer_server.server.access.auth import OPEN
from trainer_server.server.access.scopes import RULES
from trainer_server.server.access.tokens import Scope, TokenRepository
from trainer_server.server.app import create_app
from trainer_server.server.config import ServerConfig
from trainer_server.wire import Home


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
