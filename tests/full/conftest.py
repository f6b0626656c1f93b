"""The real server as a user starts it: vLLM on the embedded model, and the trainer. One for all tests that need it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from art_examples.quickstart.server_process import trainer_server

from tests.support.servers.real_server import Real, short_model
from trainer_server.common import Home
from trainer_server.engines.package_models import PACKAGE_MODELS


@pytest.fixture(scope="session")
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first layers of the embedded model."""
    return short_model(tmp_path_factory.mktemp("short"))


# Of the package: a server ends with the last test of its chain, as others need its memory.
@pytest.fixture(scope="package")
def real_on_whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Real]:
    with real_server(tmp_path_factory.mktemp("real"), PACKAGE_MODELS["embedded"].ensure(Home.find().cache)) as real:
        yield real


@pytest.fixture(scope="package")
def real_on_short(tmp_path_factory: pytest.TempPathFactory, short: Path) -> Iterator[Real]:
    with real_server(tmp_path_factory.mktemp("real"), short, "--model", str(short)) as real:
        yield real


@pytest.fixture
def real(request: pytest.FixtureRequest) -> Real:
    """The server on the embedded model; for tests that are marked so, on the first layers of it."""
    name = "real_on_short" if request.node.get_closest_marker("short_model") else "real_on_whole"
    server: Real = request.getfixturevalue(name)
    return server


@contextmanager
def real_server(home: Path, model: Path, *arguments: str) -> Iterator[Real]:
    processes: list[psutil.Process] = []
    small = ("--max-rank", "8", "--kv-cache-gib", "1", "--max-tokens", "128")
    with trainer_server(home, home / "server.log", print, *small, *arguments) as connection:
        server = psutil.Process(json.loads(Home(home).server.read_text())["pid"])
        processes += [server, *server.children(recursive=True)]
        yield Real(connection, Home(home), Home.find().cache, processes, model)
        processes += server.children(recursive=True)
    left = [process for process in processes if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]
    assert left == [], "processes outlive the server"


@pytest.fixture
def found_by_clients(real: Real, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ART_HOME", str(real.home.root))
    monkeypatch.delenv("ART_BASE_URL", raising=False)
    monkeypatch.delenv("ART_API_KEY", raising=False)
