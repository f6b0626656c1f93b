"""Real servers for the tests: the trainer server over a small engine (fast lane), or over vLLM (full lane)."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from testbed.engine_app import make_app
from testbed.tiny_model import tiny_base
from tests.support.serving import serving
from trainer_server.server.app import create_app
from trainer_server.server.config import ServerConfig
from trainer_server.wire import Home

TOKEN = "test-token"


@dataclass(slots=True)
class TrainerServer:
    """A running trainer server, and the engine behind it where that is the small one."""

    url: str
    home: Home
    engine: dict[str, Any]
    app: Any

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {TOKEN}"}

    def http(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, headers=self.headers, timeout=60)


@pytest.fixture(scope="session")
def base_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_base(tmp_path_factory.mktemp("model"))


@contextmanager
def trainer_server_on(home: Path, base: Path, **settings: Any) -> Iterator[TrainerServer]:
    """The real server, trainer process included, over the small engine."""
    engine = make_app(base=base.name)
    with serving(engine) as engine_url, trainer_server_over((engine_url,), home, base, **settings) as running:
        running.engine = engine.state.engine
        yield running


@contextmanager
def trainer_server_over(urls: tuple[str, ...], home: Path, base: Path, **settings: Any) -> Iterator[TrainerServer]:
    """The real server over engines that run already."""
    config = ServerConfig(
        home=Home(home), model=str(base), engine_urls=urls, trainer_args=("--dtype", "float32"), **settings
    )
    app = create_app(config, TOKEN)
    with serving(app) as url:
        deadline = time.monotonic() + 30
        while not httpx.get(f"{url}/health").json()["ready"]:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        (home / "server.json").write_text(json.dumps({"url": url, "pid": os.getpid()}))
        (home / "token").write_text(TOKEN)
        yield TrainerServer(url, Home(home), {}, app)


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
