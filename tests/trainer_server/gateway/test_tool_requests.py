"""Requests with tools: what a client is told when the engine cannot read tool calls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.support.engines.letters import LettersEngine
from trainer_server.common import Home
from trainer_server.server.app import create_app
from trainer_server.server.config import ServerConfig

TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}


@pytest.fixture
def http(tmp_path: Path, base_model: Path) -> TestClient:
    """A server whose engine makes no tool calls."""
    app = create_app(
        ServerConfig(Home(tmp_path), model=str(base_model), engine="tests.support.engines.letters:make"), "t"
    )
    (engine,) = app.state.server.engines
    assert isinstance(engine, LettersEngine)
    engine.ready = True
    headers = {"Authorization": "Bearer t"}
    return TestClient(app, base_url="http://127.0.0.1", headers=headers)  # no `with`: nothing is started


def ask(http: TestClient, **body: Any) -> Any:
    messages = [{"role": "user", "content": "hi"}]
    return http.post("/v1/chat/completions", json={"model": "base", "messages": messages, "max_tokens": 5, **body})


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"tool_choice": "required"},
        {"stream": True},
        {"tool_choice": {"type": "function", "function": {"name": "add"}}},
    ],
)
def test_a_request_with_tools_is_refused_with_the_remedy(http: TestClient, body: dict[str, Any]) -> None:
    refused = ask(http, tools=[TOOL], **body)
    assert refused.status_code == 400
    error = refused.json()["error"]
    assert (error["message"], error["code"], error["param"]) == (
        "`tools`: letters make no tool calls",
        "tools_not_parsed",
        "tools",
    )


@pytest.mark.parametrize("body", [{}, {"tools": [TOOL], "tool_choice": "none"}])
def test_requests_without_tools_are_answered(http: TestClient, body: dict[str, Any]) -> None:
    assert ask(http, **body).status_code == 200
