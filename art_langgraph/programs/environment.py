"""Environment variables by which OpenAI's and Anthropic's clients find the trainer server while functions run."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from trainer_server.wire import Connection

_FAMILIES = {
    "OPENAI": ("OPENAI_BASE_URL", "OPENAI_API_BASE", "OPENAI_API_KEY"),
    "ANTHROPIC": ("ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"),
}
"""Variables of each kind of client. Where the user has set one of a kind, none of that kind is changed: a key of the
user must not go to another address."""

_lock = threading.Lock()
_users = 0
_set: dict[str, str] = {}
"""What was set, to be removed when the last user has left."""


@contextmanager
def found_by_clients(server: Connection | None) -> Iterator[None]:
    """Sets the variables inside the `with` block, so that `openai.OpenAI()` without arguments asks the trainer server.

    They are of the process: several blocks at once share those of the first. The last one that ends removes them.

    Args:
        server: The trainer server; None: nothing is set.
    """
    global _users
    if server is None:
        yield
        return
    with _lock:
        if not _users:
            _begin(server)
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if not _users:
                _end()


def _begin(server: Connection) -> None:
    wanted = {
        "OPENAI": {"OPENAI_BASE_URL": f"{server.url}/v1", "OPENAI_API_KEY": server.api_key},
        "ANTHROPIC": {"ANTHROPIC_BASE_URL": server.url, "ANTHROPIC_API_KEY": server.api_key},
    }
    for family, names in _FAMILIES.items():
        if not any(os.environ.get(name) for name in names):
            _set.update(wanted[family])
            os.environ.update(wanted[family])


def _end() -> None:
    for name, value in _set.items():
        if os.environ.get(name) == value:  # else the user has changed it meanwhile
            del os.environ[name]
    _set.clear()
