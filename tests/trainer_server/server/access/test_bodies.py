"""Bodies: whole before a route sees them, not larger than the limit, and not read for those without the token."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from starlette.types import Message

from tests.support.patience import PATIENCE
from trainer_server.gateway.errors import APIError
from trainer_server.server.access import bodies
from trainer_server.server.app import create_app
from trainer_server.server.config import ServerConfig
from trainer_server.wire import Home

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
