"""The executors by name."""

from __future__ import annotations

from functools import cache
from typing import Literal

from art_langgraph.loop.executors.base import Executor
from art_langgraph.loop.executors.local import LocalExecutor
from trainer_server.common.extensions import load
from trainer_server.wire import ConfigError

ExecutorName = Literal["local", "ray"]


def executor_of(executor: Executor | ExecutorName) -> Executor:
    """An executor by its name; an executor is returned as it is. Raises ConfigError for another name."""
    if not isinstance(executor, str):
        return executor
    if executor not in ("local", "ray"):
        raise ConfigError(
            f'executor={executor!r} is unknown: give "local", "ray", or an Executor such as RayExecutor()'
        )
    return _create_executor(executor)


@cache
def _create_executor(name: ExecutorName) -> Executor:
    """One of each name in a process, so that a graph is sent to Ray once."""
    if name == "local":
        return LocalExecutor()
    executor: Executor = load("art_langgraph.loop.executors.ray").RayExecutor()
    return executor
