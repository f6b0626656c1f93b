"""Calls of remote graphs carry the rollout that they are made in.

A `RemoteGraph` calls no callbacks. `attach` wraps the methods by which it starts a run. In a rollout, they note the
call and hand the rollout over: by the metadata of the run's config, which the capture of the other process reads, and
by the headers of the request, which a LangGraph server can give to a graph that is not captured
(`configurable_headers`).
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import aclosing
from typing import Any

from langchain_core.callbacks import BaseCallbackManager
from langchain_core.runnables import Runnable
from langgraph.pregel.remote import RemoteGraph

from art_langgraph.capture.handler import ARTCallbackHandler
from art_langgraph.capture.handover import KEY, handover_metadata, read_handover
from art_langgraph.capture.scope import RemoteCall, current_handler, enclosing_run, explicit
from art_langgraph.trajectory import Place

_OF_THE_CALLER = {"assistant_id", "checkpoint_id", "checkpoint_ns", "graph_id", "lc_agent_name", "run_id", "thread_id"}
"""Metadata of the calling node that would be taken for that of the remote run, besides all of LangGraph's own."""

_lock = threading.Lock()


def is_remote(graph: Runnable[Any, Any]) -> bool:
    """Whether another process runs a graph, also where it is wrapped as by `with_retry`."""
    while (bound := getattr(graph, "bound", None)) is not None:
        graph = bound
    return isinstance(graph, RemoteGraph)


def attach() -> None:
    """Has calls of remote graphs carry their rollout. Once per process."""
    with _lock:
        if getattr(RemoteGraph.astream, "_carries_rollout", False):
            return
        wrappers: dict[str, Callable[[Any], Any]] = {
            "stream": _streaming,
            "astream": _async_streaming,
            "stream_events": _with_events,
            "astream_events": _with_events,
        }
        for name, wrap in wrappers.items():
            if (plain := vars(RemoteGraph).get(name)) is not None:
                wrapper: Any = functools.wraps(plain)(wrap(plain))
                wrapper._carries_rollout = True
                setattr(RemoteGraph, name, wrapper)


def _streaming(plain: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
    takes = inspect.signature(plain).parameters

    def stream(self: RemoteGraph, input: Any, config: Any = None, **options: Any) -> Iterator[Any]:
        config, options = _hand_over(self, config, options, takes)
        yield from plain(self, input, config, **options)

    return stream


def _async_streaming(plain: Callable[..., Any]) -> Callable[..., AsyncIterator[Any]]:
    takes = inspect.signature(plain).parameters

    async def astream(self: RemoteGraph, input: Any, config: Any = None, **options: Any) -> AsyncIterator[Any]:
        config, options = _hand_over(self, config, options, takes)
        async with aclosing(plain(self, input, config, **options)) as parts:
            async for part in parts:
                yield part

    return astream


def _with_events(plain: Callable[..., Any]) -> Callable[..., Any]:
    """`stream_events`, sync or async. Versions before v3 call `stream`, or are refused."""

    def events(self: RemoteGraph, input: Any, config: Any = None, **options: Any) -> Any:
        if options.get("version") == "v3":
            config, options = _hand_over(self, config, options, {"headers": None})
        return plain(self, input, config, **options)

    return events


def _hand_over(
    graph: RemoteGraph, config: Any, options: dict[str, Any], takes: Mapping[str, Any]
) -> tuple[Any, dict[str, Any]]:
    """Notes a call of a remote graph, if a rollout makes it.

    Args:
        graph: The remote graph.
        config: Of the call.
        options: Its other arguments.
        takes: Names of the arguments that the method takes.

    Returns:
        Config and arguments that hand the rollout over. A run that the rollout leaves early is cancelled, unless the
        caller says otherwise.
    """
    if (scope := explicit()) is None:
        return config, options
    whole_config = {**(graph.config or {}), **(config or {})}
    metadata = whole_config.get("metadata") or {}
    around, place = _surroundings(whole_config)
    call = RemoteCall(_name(graph), place)
    scope.remote.append(call)
    if (handover := read_handover({**around, **metadata})) is None:
        own = handover_metadata(scope, None, evaluation=False, call=call.id)
    else:
        own = {KEY: handover.model_copy(update={"call": call.id}).model_dump_json(exclude_defaults=True)}
    user_metadata = {
        key: value for key, value in metadata.items() if key not in _OF_THE_CALLER and not key.startswith("langgraph_")
    }
    options = dict(options)
    if "headers" in takes:
        options["headers"] = {**(options.get("headers") or {}), **scope.headers}
    if any(getattr(parameter, "kind", None) is inspect.Parameter.VAR_KEYWORD for parameter in takes.values()):
        options.setdefault("on_disconnect", "cancel")
    return {**(config or {}), "metadata": {**user_metadata, **own}}, options


def _surroundings(config: Mapping[str, Any]) -> tuple[dict[str, Any], Place]:
    """Metadata of the node or tool that makes a call, and its place. Both are empty where nothing encloses the call."""
    parent, metadata = enclosing_run()
    if parent is None and isinstance(manager := config.get("callbacks"), BaseCallbackManager):
        parent, metadata = manager.parent_run_id, {**manager.metadata, **(config.get("metadata") or {})}
    handler = current_handler()
    if parent is None or not isinstance(handler, ARTCallbackHandler):
        return metadata, Place()
    return metadata, handler.place(parent, metadata)


def _name(graph: RemoteGraph) -> str:
    """The remote graph for messages: its name and its server's address, without user, password and query."""
    for client in (graph.client, graph.sync_client):
        http = getattr(getattr(client, "http", None), "client", None)
        if http is not None:
            url = http.base_url.copy_with(username=None, password=None, query=None)
            return f"{graph.assistant_id!r} at {str(url).rstrip('/')}"
    return repr(graph.assistant_id)
