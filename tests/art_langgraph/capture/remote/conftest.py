"""A LangGraph server in this process, whose runs `install` records: both sides of a rollout of a remote graph."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from art_langgraph import TrajectoryStore, notices
from art_langgraph.capture import install, uninstall
from tests.support.servers.langgraph_server import Remote, make_app
from tests.support.servers.serving import serving
from tests.support.servers.trainer_server import TrainerServer


@pytest.fixture
def remote(connected: TrainerServer, tmp_path: Path) -> Iterator[Remote]:
    graphs: dict[str, Any] = {}
    store = TrajectoryStore(tmp_path / "remote.sqlite")
    install(store)
    with serving(app := make_app(graphs)) as url:
        yield Remote(url, app, graphs, store, connected)
    uninstall()


@pytest.fixture
def heard(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.LogCaptureFixture]:
    """Warnings, as of a process that has not warned yet."""
    monkeypatch.setattr(notices, "_notices", set())
    with caplog.at_level(logging.WARNING, "art_langgraph"):
        yield caplog
