"""The rollout being recorded, found from anywhere inside it: a ContextVar, set for the length of one graph run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from art_langgraph.callback import Recorder


@dataclass(slots=True)
class Scope:
    """What everything inside a rollout may want to know.

    temperature: overrides what the graph's models ask for; None: leave them. servers: address and key of every trainer
    server that was asked, so that the rollout's hold on a policy version can be released.
    """

    rollout_id: str
    recorder: Recorder
    temperature: float | None = None
    servers: set[tuple[str, str]] = field(default_factory=set)


_current: ContextVar[Scope | None] = ContextVar("art_rollout", default=None)


def current() -> Scope | None:
    """The rollout that is running here, or None."""
    return _current.get()


@contextmanager
def recording(scope: Scope) -> Iterator[Scope]:
    """Makes `scope` the current rollout inside the `with` block, in this task and those it starts."""
    token = _current.set(scope)
    try:
        yield scope
    finally:
        _current.reset(token)
