"""Which servers are trainer servers: those whose key a client of this process has."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from art_langgraph import ChatART, TrainerClient
from art_langgraph.client import servers
from art_langgraph.client.servers import known_servers, server_of
from trainer_server.common import Connection


@pytest.fixture(autouse=True)
def nobody_met(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A process that has met no server, and an empty home."""
    monkeypatch.setattr(servers, "_registry", {})
    monkeypatch.setenv("ART_HOME", str(tmp_path))
    for name in ("ART_BASE_URL", "ART_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_the_server_of_the_home_is_known_by_its_key(nobody_met: Path) -> None:
    assert known_servers() == []
    (nobody_met / "token").write_text("ours")
    (nobody_met / "server.json").write_text(json.dumps({"url": "http://127.0.0.1:8400"}))
    assert known_servers() == [Connection("http://127.0.0.1:8400", "ours")]
    assert server_of("http://localhost:8400/v1/", "ours") == Connection("http://localhost:8400", "ours")
    assert server_of(None, "ours") == Connection("http://127.0.0.1:8400", "ours")
    assert server_of("http://127.0.0.1:8400/v1", "theirs") is None


def test_a_file_that_cannot_be_read_is_no_server(nobody_met: Path) -> None:
    (nobody_met / "token").write_text("ours")
    (nobody_met / "server.json").write_text("{")
    assert known_servers() == []
    assert server_of("https://api.openai.com/v1", "theirs") is None


async def test_servers_of_clients_and_models_are_met() -> None:
    ChatART(policy="agent", base_url="http://a:1/v1", api_key="one")
    async with TrainerClient("http://b:2", "two"):
        pass
    assert known_servers() == [Connection("http://a:1", "one"), Connection("http://b:2", "two")]
    assert server_of("http://c:3/v1", "two") == Connection("http://c:3", "two")
    assert server_of("http://c:3/rollouts/ro-1/v1/", "two") == Connection("http://c:3", "two")


@pytest.mark.parametrize(
    ("health", "warning"),
    [
        ({"engines": [True, False]}, None),
        ({"engines": []}, None),
        ({}, None),
        ({"engines": [False], "error": None}, "no engine of the server is ready: requests wait"),
        ({"engines": [False], "error": "it ended"}, "no engine of the server is ready (it ended): requests wait"),
    ],
)
async def test_engines_that_start_are_no_silent_wait(
    health: dict[str, object],
    warning: str | None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def answer(_: Connection | None) -> dict[str, object]:
        return health

    monkeypatch.setattr(servers, "_health", answer)
    assert await servers.find_capacity(None) == (None, False)
    assert caplog.text == "" if warning is None else warning in caplog.text
