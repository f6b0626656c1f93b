"""Gives policy versions back when rollouts end: in the background, all that wait in one request."""

from __future__ import annotations

import atexit
import queue
import threading
import time
from collections import defaultdict

import httpx

from art_langgraph.capture.scope import Scope

_TIMEOUT = 2.0
"""Seconds for one request. Best effort: a hold that is not given back expires by itself."""

_Server = tuple[str, str]
"""Address and key."""
_waiting: queue.SimpleQueue[tuple[_Server, str] | threading.Event] = queue.SimpleQueue()
_lock = threading.Lock()
_thread: threading.Thread | None = None


def release(scope: Scope) -> None:
    """Gives back what an ended rollout holds, soon. Never blocks."""
    global _thread
    if not scope.servers:
        return
    for server in scope.servers:
        _waiting.put((server, scope.rollout_id))
    with _lock:
        if _thread is None or not _thread.is_alive():  # a fork leaves threads behind
            if _thread is None:
                atexit.register(flush)
            _thread = threading.Thread(target=_run, name="art-release", daemon=True)
            _thread.start()


def flush(timeout: float = _TIMEOUT) -> None:
    """Waits until all that was released by now is given back, for `timeout` seconds at most."""
    if _thread is not None and _thread.is_alive():
        done = threading.Event()
        _waiting.put(done)
        done.wait(timeout)


def _run() -> None:
    with httpx.Client(timeout=_TIMEOUT) as http:
        while True:
            items = [_waiting.get()]
            if not isinstance(items[0], threading.Event):
                time.sleep(0.01)  # rollouts end in flocks
            while not _waiting.empty():
                items.append(_waiting.get())
            rollouts: defaultdict[_Server, list[str]] = defaultdict(list)
            for item in items:
                if not isinstance(item, threading.Event):
                    rollouts[item[0]].append(item[1])
            for (url, key), ids in rollouts.items():
                try:
                    headers = {"Authorization": f"Bearer {key}"}
                    http.post(f"{url}/api/rollouts/release", json=ids, headers=headers)
                except httpx.HTTPError:
                    continue
            for item in items:
                if isinstance(item, threading.Event):
                    item.set()
