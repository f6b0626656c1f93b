"""Releases the policy versions of ended rollouts: in the background, all that wait in one request."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager

import httpx

from art_langgraph.background.background import Background, at_exit
from art_langgraph.client.proxies import ProxyTransport

log = logging.getLogger("art_langgraph")

_TIMEOUT = 2.0
"""Seconds for one request. Best effort: a version that is not released is released when its lease expires."""

Key = str | Callable[[], str | Awaitable[str]]
"""A key, or a function that gives it when a request is sent."""
Server = tuple[str, Key]
"""Address and key of a server."""


def release(rollout: str, servers: Iterable[Server]) -> None:
    """Releases, soon, the versions that an ended rollout holds. Never blocks.

    Args:
        rollout: Its id.
        servers: The servers that it has used.
    """
    for server in servers:
        _releases.put((server, rollout))


def _close() -> None:
    _releases.close(_TIMEOUT)


def flush(timeout: float = _TIMEOUT) -> None:
    """Waits until all requests of releases are sent, for `timeout` seconds at most."""
    _releases.flush(timeout)


@contextmanager
def _open_worker() -> Iterator[Callable[[list[tuple[Server, str]]], int]]:
    with httpx.Client(timeout=_TIMEOUT, transport=ProxyTransport()) as http:

        def post(leases: list[tuple[Server, str]]) -> int:
            rollouts: defaultdict[Server, list[str]] = defaultdict(list)
            for server, rollout in leases:
                rollouts[server].append(rollout)
            for (url, key), ids in rollouts.items():
                try:
                    headers = {"Authorization": f"Bearer {token_of(key)}"}
                    http.post(f"{url}/api/rollouts/release", json=ids, headers=headers)
                except Exception as error:  # a key's function is the user's: the thread must live on
                    log.debug("%d rollouts keep their versions at %s until they expire: %r", len(ids), url, error)
            return len(leases)

        yield post


def token_of(key: Key) -> str:
    """A key as it is sent."""
    value = key() if callable(key) else key
    if inspect.isawaitable(value):
        return asyncio.run(_await_value(value))
    return value


async def _await_value(awaitable: Awaitable[str]) -> str:
    return await awaitable


_releases = Background("art-release", _open_worker, pause=0.01)
at_exit(_close)
