"""Gives policy versions back when rollouts end: in the background, all that wait in one request."""

from __future__ import annotations

import atexit
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import httpx

from art_langgraph.capture.background import Background
from art_langgraph.capture.scope import Scope

_TIMEOUT = 2.0
"""Seconds for one request. Best effort: a hold that is not given back expires by itself."""

_Held = tuple[str, str, str]
"""Address and key of a server, and the rollout that holds a version there."""


def release(scope: Scope) -> None:
    """Gives back what an ended rollout holds, soon. Never blocks."""
    for url, key in scope.servers:
        _releases.put((url, key, scope.rollout_id))


def flush(timeout: float = _TIMEOUT) -> None:
    """Waits until all that was released by now is given back, for `timeout` seconds at most."""
    _releases.flush(timeout)


@contextmanager
def _opened() -> Iterator[Callable[[list[_Held]], None]]:
    with httpx.Client(timeout=_TIMEOUT) as http:

        def post(held: list[_Held]) -> None:
            rollouts: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
            for url, key, rollout in held:
                rollouts[url, key].append(rollout)
            for (url, key), ids in rollouts.items():
                headers = {"Authorization": f"Bearer {key}"}
                try:
                    http.post(f"{url}/api/rollouts/release", json=ids, headers=headers)
                except httpx.HTTPError:
                    continue

        yield post


_releases = Background("art-release", _opened, pause=0.01)
atexit.register(flush)
