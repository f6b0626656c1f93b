"""Packs what goes to a Ray worker, and refuses what would not arrive whole."""

from __future__ import annotations

import io
import pickle
from types import ModuleType
from typing import Any

from langgraph.pregel import Pregel

from trainer_server.wire import ConfigError

_REMEDY = (
    "Give a factory instead, a function of a module that makes the graph and its models on the worker: "
    "`from my_agents import make_graph`, then gather(make_graph, …), which sends the name my_agents:make_graph alone"
)


class _CompiledGraph(Exception):
    """A compiled graph would be copied. LangGraph compares markers by their identity, which a copy does not have: a
    node's result is refused there, or a channel that is empty counts as full."""


def pack_value(cloudpickle: ModuleType, value: Any, what: str) -> bytes:
    """A value as bytes: what can be imported by its name, all else by its content.

    Args:
        cloudpickle: Ray's own.
        value: What is sent.
        what: What it is, for messages.

    Raises:
        ConfigError: It cannot be pickled, or it holds a compiled graph.
    """

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc, name-defined]
        def reducer_override(self, obj: Any) -> Any:
            if isinstance(obj, Pregel):
                raise _CompiledGraph(f"the compiled graph {obj.get_name()!r} works in the process that made it only")
            return super().reducer_override(obj)

    file = io.BytesIO()
    try:
        Pickler(file).dump(value)
    except (_CompiledGraph, pickle.PicklingError, TypeError, AttributeError, RecursionError, ValueError) as error:
        raise ConfigError(f"{what} cannot be sent to a Ray worker: {_cause(error)}. {_REMEDY}") from error
    return file.getvalue()


def _cause(error: Exception) -> str:
    return str(error) if isinstance(error, _CompiledGraph) else f"{type(error).__name__}: {error}"
