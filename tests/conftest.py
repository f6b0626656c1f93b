"""Real servers for the tests: the trainer server over a small engine (fast lane), or over vLLM (full lane)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.tiny_model import tiny_base
from tests.support.trainer_server import TOKEN, TrainerServer, trainer_server_on


@pytest.fixture(scope="session")
def base_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_base(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory, base_model: Path) -> Iterator[TrainerServer]:
    """One server for the fast lane, with the policy `agent`."""
    with trainer_server_on(tmp_path_factory.mktemp("home"), base_model) as running:
        with running.http() as http:
            assert http.post("/api/policies", json={"name": "agent"}).status_code == 201
        yield running


@pytest.fixture
def connected(server: TrainerServer, monkeypatch: pytest.MonkeyPatch) -> TrainerServer:
    """The server, found by clients through the environment."""
    monkeypatch.setenv("ART_BASE_URL", server.url)
    monkeypatch.setenv("ART_API_KEY", TOKEN)
    return server
