"""The trainer server with several gateway processes, its own process in this one, over the small engine."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil

from testbed.engine_app import make_app
from tests.support.patience import PATIENCE
from tests.support.servers.serving import serving
from tests.support.servers.trainer_server import TOKEN, TrainerServer
from trainer_server.common import Home
from trainer_server.server.app import create_app
from trainer_server.server.config import ServerConfig
from trainer_server.server.gateways.processes import GatewayProcesses, GatewaysServer
from trainer_server.server.serve import uvicorn_config


def gateway_processes(parent: int) -> list[psutil.Process]:
    """The gateway processes of a server."""
    children = psutil.Process(parent).children()
    return [child for child in children if "trainer_server.server.gateways" in child.cmdline()]


def client_of(process: psutil.Process, url: str, key: str = TOKEN) -> httpx.Client:
    """A client whose one connection a gateway process has."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        limits = httpx.Limits(max_connections=1, keepalive_expiry=600)
        http = httpx.Client(base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=PATIENCE, limits=limits)
        answer = http.get("/health")
        port = answer.extensions["network_stream"].get_extra_info("client_addr")[1]
        if any(one.raddr and one.raddr.port == port for one in process.net_connections("tcp")):
            return http
        http.close()
    raise TimeoutError(f"no connection came to {process}")


@dataclass(slots=True)
class GatewayServer(TrainerServer):
    """A running server with gateway processes."""

    processes: list[psutil.Process]

    def clients(self, key: str = TOKEN) -> list[httpx.Client]:
        """A client of each gateway process."""
        return [client_of(process, self.url, key) for process in self.processes]


@contextmanager
def gateways_on(home: Path, base: Path, *, gateways: int = 2, **settings: Any) -> Iterator[GatewayServer]:
    """The server with its processes, once all of them listen."""
    engine = make_app(base=base.name)
    listeners = []
    for _ in range(gateways):
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(("127.0.0.1", listeners[0].getsockname()[1] if listeners else 0))
        listeners.append(listener)
    with serving(engine) as engine_url:
        config = ServerConfig(
            home=Home(home), model=str(base), engine_urls=(engine_url,), trainer_on_demand=True, gateways=gateways,
            drain=1.0, **settings,
        )  # fmt: skip
        app = create_app(config, TOKEN)
        processes = GatewayProcesses(app.state.server, app, TOKEN, listeners)
        parent = GatewaysServer(
            processes, uvicorn_config(app, config), grace=config.drain, end=app.state.server.gateway.stopping.set,
            begin=app.state.server.ending.set,
        )  # fmt: skip
        known = {child.pid for child in psutil.Process().children()}
        thread = threading.Thread(target=asyncio.run, args=(parent.serve(sockets=[]),), daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{listeners[0].getsockname()[1]}"
        running = GatewayServer(url, Home(home), engine.state.engine, app, [])
        try:
            deadline = time.monotonic() + PATIENCE
            while len(running.processes) < gateways or not app.state.server.ready:
                assert time.monotonic() < deadline
                children = (child for child in gateway_processes(psutil.Process().pid) if child.pid not in known)
                running.processes = [child for child in children if _listens(child, listeners[0])]
                time.sleep(0.05)
            yield running
        finally:
            parent.should_exit = True
            thread.join(PATIENCE)


def _listens(process: psutil.Process, listener: socket.socket) -> bool:
    port = listener.getsockname()[1]
    return any(one.status == "LISTEN" and one.laddr.port == port for one in process.net_connections("tcp"))
