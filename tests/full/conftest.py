"""The real server as a user starts it: vLLM on the embedded model, and the trainer. One for all tests that need it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from art_examples.quickstart.server_process import trainer_server

from trainer_server.wire import Connection, Home


@dataclass(frozen=True, slots=True)
class Real:
    connection: Connection
    home: Home
    cache: Path
    processes: list[psutil.Process]

    def engine(self) -> psutil.Process:
        """The guard of vLLM."""
        return psutil.Process(int((self.home.logs / "engine.pid").read_text().split()[0]))

    def http(self, **options: Any) -> httpx.AsyncClient:
        headers = {"Authorization": f"Bearer {self.connection.api_key}"}
        return httpx.AsyncClient(base_url=self.connection.url, headers=headers, timeout=120, **options)


@pytest.fixture(scope="session")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Real]:
    home = tmp_path_factory.mktemp("real")
    processes: list[psutil.Process] = []
    with trainer_server(home, home / "server.log", print, "--max-rank", "8") as connection:
        server = psutil.Process(json.loads(Home(home).server.read_text())["pid"])
        processes += [server, *server.children(recursive=True)]
        yield Real(connection, Home(home), Home.find().cache, processes)
        processes += server.children(recursive=True)
    left = [process for process in processes if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]
    assert left == [], "processes outlive the server"


@pytest.fixture
def found_by_clients(real: Real, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ART_HOME", str(real.home.root))
    monkeypatch.delenv("ART_BASE_URL", raising=False)
    monkeypatch.delenv("ART_API_KEY", raising=False)
