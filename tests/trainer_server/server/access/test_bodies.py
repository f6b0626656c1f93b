"""Bodies: whole before a route sees them, not larger than the limit, and not read for those without the token."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
from fastapi.routing import APIRoute
from pydantic import TypeAdapter
from starlette.testclient import TestClient
from starlette.types import Message

from tests.support.patience import PATIENCE
from trainer_server.common import Home
from trainer_server.dashboard import views
from trainer_server.gateway.errors import APIError
from trainer_server.gateway.parameters import ChatBody
from trainer_server.server.access import bodies
from trainer_server.server.app import create_app
from trainer_server.server.config import ServerConfig
from trainer_server.server.routes import ROUTERS
from trainer_server.wire import RunTrace, RunTraces
from trainer_server.wire.bounds import ClosedRecord

MIB = 2**20
HOLDER = {"Authorization": "Bearer token", "Content-Type": "application/json"}


@pytest.fixture
def http(tmp_path: Path, base_model: Path) -> TestClient:
    engine = "tests.support.engines.letters:make"
    config = ServerConfig(Home(tmp_path), model=str(base_model), engine=engine, max_body_mib=1)
    return TestClient(create_app(config, "token"), base_url="http://127.0.0.1")


def chunks(count: int, read: list[int]) -> Iterator[bytes]:
    """A body without Content-Length; `read` gets a number for each chunk that was taken."""
    for number in range(count):
        read.append(number)
        yield b" " * MIB


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/api/policies", "/api/rollouts/release"])
def test_a_body_over_the_limit_is_refused(http: TestClient, path: str) -> None:
    for body in (b" " * (MIB + 1), chunks(2, [])):
        answer = http.post(path, content=body, headers=HOLDER)
        assert answer.status_code == 413
        assert answer.json()["error"]["code"] == "body_too_large"
        assert "larger than 1 MiB" in answer.json()["error"]["message"]
        assert "--max-body-mib" in answer.json()["error"]["message"]


BODIES = {
    "/v1/chat/completions": b'{"messages":[%s]}',
    "/v1/responses": b'{"input":[%s]}',
    "/v1/messages": b'{"messages":[%s]}',
    "/v1/messages/count_tokens": b'{"messages":[%s]}',
    "/rollouts/r/v1/chat/completions": b'{"messages":[%s]}',
}
"""Requests of conversations: 350,000 empty lists took the server four seconds, and 8 million two minutes and 11 GB."""


@pytest.mark.parametrize("path", BODIES)
def test_the_values_of_a_conversation_have_a_bound(http: TestClient, path: str) -> None:
    answer = http.post(path, content=BODIES[path] % b",".join([b"[]"] * (MIB // 3 - 20)), headers=HOLDER)
    assert answer.status_code == 413
    assert answer.json()["error"]["code"] == "too_many_values"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/completions"),
        ("POST", "/api/rollouts/release"),
        ("PUT", "/api/rollouts/r"),
        ("POST", "/api/rollouts/r/reward"),
        ("PUT", "/api/rollouts/r/trace"),
        ("POST", "/api/rollouts/traces"),
        ("PUT", "/api/rollouts/r/records/c/1"),
        ("POST", "/api/policies"),
        ("POST", "/api/policies/agent/steps"),
        ("POST", "/api/policies/agent/sft"),
        ("POST", "/api/completions"),
    ],
)
def test_the_values_of_every_body_have_a_bound(http: TestClient, monkeypatch: Any, method: str, path: str) -> None:
    monkeypatch.setattr(bodies, "_most_values", lambda _scope: 1000)
    answer = http.request(method, path, content=b"[%s]" % b",".join([b"[]"] * 1000), headers=HOLDER)
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_many_values")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32", "utf-8-sig"])
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/chat/completions"),
        ("PUT", "/api/rollouts/r"),
        ("PUT", "/api/rollouts/r/trace"),
        ("PUT", "/api/rollouts/r/records/c/1"),
        ("POST", "/api/policies"),
    ],
)
def test_every_body_is_in_utf_8(http: TestClient, method: str, path: str, encoding: str) -> None:
    answer = http.request(method, path, content='{"metadata": {"a": 1}}'.encode(encoding), headers=HOLDER)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "not_utf8")
    assert "send JSON in UTF-8" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("method", "path", "most"),
    [
        ("PUT", "/api/rollouts/x", 2**17),
        ("POST", "/api/rollouts/x/reward", 2**17),
        ("PUT", "/api/rollouts/x/trace", 2**19),
        ("POST", "/api/rollouts/traces", 2**19),
        ("POST", "/api/completions/find", 2**18),
        ("POST", "/api/policies", 2**18),
    ],
)
def test_what_a_run_says_of_itself_has_few_values(http: TestClient, method: str, path: str, most: int) -> None:
    """3 MiB of empty objects took 7.7 s of the event loop."""
    body = b'{"metadata":{"a":[%s]}}' % b",".join([b"{}"] * (most // 2))
    answer = http.request(method, path, content=body, headers=HOLDER)
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_many_values")


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/api/rollouts/release", b"[%s]" % b",".join([b"{}"] * 100_000)),
        ("PUT", "/api/rollouts/r", json.dumps({f"k{n}": 0 for n in range(30_000)}).encode()),
        ("POST", "/api/rollouts/r/reward", json.dumps({"metrics": {f"k{n}": "x" for n in range(30_000)}}).encode()),
        ("POST", "/api/rollouts/traces", json.dumps({"traces": {f"k{n}": 0 for n in range(50_000)}}).encode()),
        ("PUT", "/api/rollouts/r/trace", json.dumps({"id": "r", "nodes": [{}] * 100_000}).encode()),
        ("POST", "/api/policies", json.dumps({"targets": [0] * 100_000}).encode()),
        ("POST", "/api/policies/agent/steps", json.dumps({"groups": [{}] * 100_000}).encode()),
        ("POST", "/api/policies/agent/sft", json.dumps({"conversations": [{"messages": [0] * 100_000}]}).encode()),
        ("POST", "/api/completions", json.dumps({"completions": [{}] * 100_000}).encode()),
        ("POST", "/v1/chat/completions", json.dumps({"model": "base", "messages": [0] * 9000}).encode()),
        (
            "POST",
            "/v1/chat/completions",
            json.dumps({"model": "base", "messages": [{"role": "user"}] * 10_001}).encode(),
        ),
        (
            "POST",
            "/v1/chat/completions",
            json.dumps({"model": "base", "logit_bias": {f"k{n}": "x" for n in range(20_000)}}).encode(),
        ),
    ],
)
def test_the_first_fault_of_many_is_the_only_one(http: TestClient, method: str, path: str, body: bytes) -> None:
    """pydantic's list of all faults took thirty times the bytes of the body, and half a minute of the event loop."""
    answer = http.request(method, path, content=body, headers=HOLDER)
    assert answer.status_code in (400, 422)
    assert len(answer.content) < 1000


def schemas(node: Any, around: Any = None) -> Iterator[tuple[dict[str, Any], Any]]:
    """The parts of one of pydantic's schemas, and what is around each."""
    if isinstance(node, dict):
        yield node, around
    for part in node.values() if isinstance(node, dict) else node if isinstance(node, list | tuple) else ():
        yield from schemas(part, node if isinstance(node, dict) else around)


def test_no_type_of_a_body_lists_all_faults() -> None:
    """That of each route, with all that it may hold."""
    routes = [route for router in (*ROUTERS, *views.ROUTERS) for route in router.routes if isinstance(route, APIRoute)]
    params = [param for route in routes for param in route.dependant.body_params]
    kinds = [Annotated[param.field_info.annotation, "body", *param.field_info.metadata] for param in params]
    assert len(kinds) > 10
    for kind in (*kinds, RunTrace, RunTraces, ChatBody):
        for schema, around in schemas(TypeAdapter(kind).core_schema):
            match schema:
                case {"type": "list" | "set" | "frozenset", "items_schema": {"type": inner}} if inner != "any":
                    assert schema.get("fail_fast"), (kind, schema)
                case {"type": "tuple", "variadic_item_index": 0}:
                    assert schema.get("fail_fast"), (kind, schema)
                case {"type": "dict", "values_schema": {"type": inner}} if inner != "any":
                    assert around["type"] == "function-before", (kind, schema)
                case {"type": "model", "config": {"extra_fields_behavior": "forbid"}}:
                    assert issubclass(schema["cls"], ClosedRecord), schema["cls"]


def test_a_body_up_to_the_limit_is_read(http: TestClient) -> None:
    for body in (b"[]" + b" " * (MIB - 2), iter([b"[", b"]"])):
        assert http.post("/api/rollouts/release", content=body, headers=HOLDER).status_code == 204


@pytest.mark.parametrize("path", ["/api/rollouts/release", "/ui/login"])
async def test_a_body_that_stops_coming_is_not_waited_for(
    http: TestClient, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """A client that vanished in the middle of its request would hold a connection for ever. Anybody may log in."""
    monkeypatch.setattr(bodies, "BODY_TIMEOUT", 0.05)
    parts: list[dict[str, object]] = [{"type": "http.request", "body": b"[", "more_body": True}]
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, object]:
        return parts.pop() if parts else await asyncio.Future()

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    headers = [(b"host", b"localhost"), (b"content-length", b"99")]
    if path != "/ui/login":
        headers.append((b"authorization", b"Bearer token"))
    scope = {"type": "http", "method": "POST", "path": path, "headers": headers, "query_string": b"", "root_path": ""}
    async with asyncio.timeout(PATIENCE):
        await http.app(scope, receive, send)  # type: ignore[arg-type]
    assert sent[0]["status"] == 408
    text = sent[1]["body"].decode()
    assert (
        "send the request again" in text if path == "/ui/login" else json.loads(text)["error"]["code"] == "body_timeout"
    )


async def test_a_body_that_trickles_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """However short the time between two parts is."""
    monkeypatch.setattr(bodies, "BODY_TIMEOUT", 0.05)

    async def receive() -> Message:
        await asyncio.sleep(0)
        return {"type": "http.request", "body": b"", "more_body": True}

    async with asyncio.timeout(PATIENCE):
        with pytest.raises(APIError) as refused:
            await bodies.read_body(receive, MIB)
    assert (refused.value.status, refused.value.code) == (408, "body_timeout")
    assert "less than 1024 a second" in refused.value.message


@pytest.mark.parametrize(("path", "status"), [("/v1/chat/completions", 401), ("/health", 405)])
async def test_nothing_is_read_of_a_body_without_the_token(http: TestClient, path: str, status: int) -> None:
    sent: list[int] = []

    async def receive() -> dict[str, object]:
        raise AssertionError("the body was read")

    async def send(message: dict[str, int]) -> None:
        sent.append(message.get("status", 0))

    headers = [(b"host", b"localhost"), (b"content-length", b"9999999999")]
    scope = {"type": "http", "method": "POST", "path": path, "headers": headers, "query_string": b"", "root_path": ""}
    await http.app(scope, receive, send)  # type: ignore[arg-type]
    assert sent[0] == status
