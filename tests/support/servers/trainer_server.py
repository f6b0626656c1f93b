"""The real trainer server, in this process, over the small engine or over engines that run already."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from testbed.engine_app import make_app
from tests.support.patience import PATIENCE
from tests.support.servers.serving import serving
from trainer_server.common import Home
from trainer_server.server.app import create_app
from trainer_server.server.config import ServerConfig

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
        return httpx.Client(base_url=self.url, headers=self.headers, timeout=120)


def row(server: TrainerServer, one: str) -> dict[str, Any]:
    """The ledger's row of a completion, by the id of its answer in any API."""
    with server.http() as http:
        answer = http.get(f"/api/completions/{one}")
        assert answer.status_code == 200, answer.text
        return dict(answer.json())


Around = Callable[[Any], Any]
"""Wraps the server's ASGI application."""


@contextmanager
def trainer_server_on(
    home: Path, base: Path, *, around: Around = lambda app: app, **settings: Any
) -> Iterator[TrainerServer]:
    """The real server, trainer process included, over the small engine."""
    engine = make_app(base=base.name)
    with (
        serving(engine) as engine_url,
        trainer_server_over((engine_url,), home, base, around=around, **settings) as running,
    ):
        running.engine = engine.state.engine
        yield running


@contextmanager
def trainer_server_over(
    urls: tuple[str, ...],
    home: Path,
    base: Path,
    *,
    around: Around = lambda app: app,
    port: int = 0,
    **settings: Any,
) -> Iterator[TrainerServer]:
    """The real server over engines that run already. port: 0 takes any.

    Its trainer computes at normal priority: at a low one it would wait for the tests beside it. It is started with the
    first job: most tests have none.
    """
    settings = {
        "trainer_low_priority": False,
        "trainer_on_demand": True,
        "trainer_args": ("--dtype", "float32"),
        **settings,
    }
    config = ServerConfig(home=Home(home), model=str(base), engine_urls=urls, **settings)
    app = create_app(config, TOKEN)
    with serving(around(app), port) as url:
        deadline = time.monotonic() + PATIENCE
        while not httpx.get(f"{url}/health").json()["ready"]:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        (home / "server.json").write_text(json.dumps({"url": url, "pid": os.getpid()}))
        (home / "token").write_text(TOKEN)
        yield TrainerServer(url, Home(home), {}, app)
