"""The real server as a user starts it: vLLM on the embedded model, and the trainer. One for all tests that need it."""

from __future__ import annotations

import json
from collections.abc import Iterator

import psutil
import pytest
from art_examples.quickstart.server_process import trainer_server

from tests.support.servers.real_server import Real
from trainer_server.wire import Home


@pytest.fixture(scope="session")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Real]:
    home = tmp_path_factory.mktemp("real")
    processes: list[psutil.Process] = []
    small = ("--max-rank", "8", "--kv-cache-gib", "1", "--max-tokens", "128")
    with trainer_server(home, home / "server.log", print, *small) as connection:
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
