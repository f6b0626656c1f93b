"""The trainer servers that this process knows. The key of a request tells whether it goes to one of them."""

from __future__ import annotations

import logging
import re
import threading
from typing import Any, NamedTuple

import httpx

from trainer_server.common import Connection
from trainer_server.wire import ConfigError

log = logging.getLogger("art_langgraph")

_BASE_PATH = re.compile(r"(/rollouts/[^/]+)?(/v1)?/*$")
_LOOK_TIMEOUT = httpx.Timeout(10.0, connect=2.0)
_registry: dict[Connection, None] = {}
_lock = threading.Lock()


def register_server(connection: Connection) -> None:
    """Makes a server known. ChatART and TrainerClient do so when they are made."""
    with _lock:
        _registry[Connection(server_url(connection.url), connection.api_key)] = None


def known_servers() -> list[Connection]:
    """The server that clients find by default, and then those of `register_server`."""
    with _lock:
        servers = list(_registry)
    try:
        default = Connection.find()
    except (ConfigError, OSError, ValueError, KeyError):  # no server here, or a file of it that cannot be read
        return servers
    return list(dict.fromkeys([default, *servers]))


def server_of(base_url: str | None, key: str) -> Connection | None:
    """The server that a model asks; None for a server that is no trainer server.

    Args:
        base_url: The model's; None: the model finds it in its environment.
        key: The model's. The key decides, because one server has several addresses.
    """
    with _lock:
        servers = list(_registry)
    server = next((server for server in servers if server.api_key == key), None)
    server = server or next((server for server in known_servers() if server.api_key == key), None)
    if server is None or not base_url:
        return server
    return Connection(server_url(base_url), key)


def server_url(base_url: str) -> str:
    """The address of a trainer server, from the base URL of a model or of a rollout."""
    return _BASE_PATH.sub("", base_url)


class Capacity(NamedTuple):
    """What a server computes at once."""

    concurrency: int | None
    """Requests of its engines; None: there is no server, it does not answer, or its engines do not say."""
    overlaps: bool
    """Whether its engines and its trainer have GPUs of their own. False also where it does not answer or say."""


async def find_capacity(server: Connection | None) -> Capacity:
    """What a server computes at once, by one request to it. None: the server that clients find. A warning tells of a
    server whose engines are not ready: its answers wait for them, and nothing else would say so."""
    health = await _health(server)
    if engines := health.get("engines"):
        trouble = f" ({health['error']})" if health.get("error") else ""
        if not any(engines):
            log.warning("no engine of the server is ready%s: requests wait; a start takes a minute or two", trouble)
    concurrency = health.get("concurrency")
    if type(concurrency) is not int or concurrency < 1:
        concurrency = None
    return Capacity(concurrency, health.get("overlaps") is True)


async def _health(server: Connection | None) -> dict[str, Any]:
    """What a server says of itself; nothing where it does not answer. None: the one that clients find."""
    try:
        server = server or Connection.find()
        async with httpx.AsyncClient(timeout=_LOOK_TIMEOUT) as http:
            answer = await http.get(f"{server.url}/health", headers={"Authorization": f"Bearer {server.api_key}"})
            return dict(answer.json())
    except (ConfigError, OSError, ValueError, KeyError, TypeError, httpx.HTTPError):
        return {}
