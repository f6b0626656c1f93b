"""Environment variables by which OpenAI's and Anthropic's clients find the trainer server while functions run, and by
which all clients ask loopback without a proxy.

The variables of a process are the same for all runs in it. A child process that inherits them gets the base URL of its
own run instead: `found_by_clients` wraps the constructor of `subprocess.Popen` for that.
"""

from __future__ import annotations

import functools
import os
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from art_langgraph.programs.run import run_here
from trainer_server.common import Connection
from trainer_server.common.home import is_local
from trainer_server.common.proxies import loopback_exemption

_FAMILIES = {
    "OPENAI": ("OPENAI_BASE_URL", "OPENAI_API_BASE", "OPENAI_API_KEY"),
    "ANTHROPIC": ("ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"),
}
"""Variables of each kind of client. Where the user has set one of a kind, none of that kind is changed: a key of the
user must not go to another address."""

_BASE_URLS = ("OPENAI_BASE_URL", "ANTHROPIC_BASE_URL")
_BEFORE_ENV = 10
"""Parameters of `subprocess.Popen` before `env`."""

_lock = threading.Lock()
_users = 0
_set: dict[str, str] = {}
"""What was set, until the last user has left."""
_before: dict[str, str] = {}
"""What some of them were before."""


@contextmanager
def found_by_clients(server: Connection | None) -> Iterator[None]:
    """Sets the variables inside the `with` block, so that `openai.OpenAI()` without arguments asks the trainer server.

    They are of the process: several blocks at once share those of the first. The last one that ends takes them back.

    Args:
        server: The trainer server; None: nothing is set.
    """
    global _users
    if server is None:
        yield
        return
    with _lock:
        _tie_children()
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
    variables = {
        "OPENAI": {"OPENAI_BASE_URL": f"{server.url}/v1", "OPENAI_API_KEY": server.api_key},
        "ANTHROPIC": {"ANTHROPIC_BASE_URL": server.url, "ANTHROPIC_API_KEY": server.api_key},
    }
    for family, names in _FAMILIES.items():
        if not any(os.environ.get(name) for name in names):
            _set.update(variables[family])
    if is_local(server.url):
        _set.update(loopback_exemption(os.environ))
    _before.update({name: os.environ[name] for name in _set if name in os.environ})
    os.environ.update(_set)


def _end() -> None:
    for name, value in _set.items():
        if os.environ.get(name) == value:  # else the user has changed it meanwhile
            del os.environ[name]
            os.environ.update({name: _before[name]} if name in _before else {})
    _set.clear()
    _before.clear()


def _tie_children() -> None:
    """Has child processes get the base URL of the run that starts them. Once per process."""
    plain = subprocess.Popen.__init__
    if getattr(plain, "_says_rollout", False):
        return

    @functools.wraps(plain)
    def init_in_run(self: Any, *args: Any, **options: Any) -> None:
        if len(args) <= _BEFORE_ENV and (own := _of_the_run(options.get("env"))) is not None:
            options["env"] = own
        plain(self, *args, **options)

    init_in_run._says_rollout = True  # type: ignore[attr-defined]
    subprocess.Popen.__init__ = init_in_run  # type: ignore[method-assign]


def _of_the_run(env: Mapping[Any, Any] | None) -> dict[Any, Any] | None:
    """The environment of a child process, with the base URLs of its run where it would get those of this process.

    Args:
        env: What the child is to get; None: that of this process.

    Returns:
        The environment; None where nothing has to be changed.
    """
    environment = os.environ if env is None else env
    names = [name for name in _BASE_URLS if name in _set and environment.get(name) == _set[name]]
    if not names or (run := run_here()) is None or run.server is None:
        return None
    own = run.environment
    return {**environment, **{name: own[name] for name in (*names, "ART_ROLLOUT")}}
