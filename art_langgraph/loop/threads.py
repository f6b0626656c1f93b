"""The thread of a graph's run: which it is, where a run of it stopped, and which scenario it belongs to."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from langchain_core.runnables import Runnable, RunnableConfig

from art_langgraph.store import TrajectoryStore
from art_langgraph.trajectory import Scenario


def own_thread(config: RunnableConfig | None, graph: Runnable[Any, Any], thread: str) -> RunnableConfig:
    """Adds a new thread to a config, where the graph has a checkpointer and the config names no thread."""
    merged: dict[str, Any] = dict(config or {})
    if getattr(graph, "checkpointer", None):
        merged["configurable"] = {"thread_id": thread, **(merged.get("configurable") or {})}
    return cast(RunnableConfig, merged)


def thread_of(config: RunnableConfig | None) -> str | None:
    """The thread that a config names."""
    thread = configurable(config).get("thread_id")
    return None if thread is None else str(thread)


def configurable(config: RunnableConfig | None) -> dict[str, Any]:
    """What a config says of thread and checkpoint."""
    return (config or {}).get("configurable") or {}


def newest(config: RunnableConfig) -> RunnableConfig:
    """A config that means the newest state of its thread, not a checkpoint."""
    left = {key: value for key, value in configurable(config).items() if key not in ("checkpoint_id", "checkpoint_map")}
    return cast(RunnableConfig, {**config, "configurable": left})


async def questions(graph: Runnable[Any, Any], output: Any, config: RunnableConfig) -> list[Any] | None:
    """What a run stopped at.

    Args:
        graph: The graph that ran.
        output: What the run returned.
        config: Of the thread, in its newest state.

    Returns:
        The values of the interrupts; no values at a breakpoint (`interrupt_before`, `interrupt_after`), which asks
        nothing; None when the run has ended.
    """
    if isinstance(output, dict) and (interrupts := output.get("__interrupt__")):
        return [interrupt.value for interrupt in interrupts]
    if not getattr(graph, "checkpointer", None):
        return None
    state = await cast(Any, graph).aget_state(config)
    return [] if state.next else None


async def thread_scenario(
    given: Scenario, graph: Runnable[Any, Any], config: RunnableConfig, store: TrajectoryStore | None
) -> Scenario:
    """The scenario of a run that has no input of its own: that of its thread.

    Args:
        given: The scenario that the run was given. One with an id of its own is kept.
        graph: The graph that runs.
        config: Names the thread that goes on.
        store: Has the thread's earlier runs, if they were stored; None: what the checkpointer has is looked at.
    """
    if given.id != Scenario(input=given.input, metadata=given.metadata).id:
        return given
    thread = thread_of(config)
    if store is not None and (earlier := await asyncio.to_thread(store.list, thread=thread, limit=1)):
        return earlier[0].scenario
    begun = await _newest_input(getattr(graph, "checkpointer", None), thread)
    if begun is not None:
        return Scenario(input=begun, metadata=given.metadata)
    return Scenario(id=f"thread-{thread}", input=given.input, metadata=given.metadata)


async def _newest_input(saver: Any, thread: str | None) -> Any:
    """The newest input that a checkpointer has of a thread; None where it keeps none."""
    config = {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}
    if saver is None:  # the run will say that it has none
        return None
    async for saved in saver.alist(config, filter={"source": "input"}, limit=1):
        return saved.checkpoint["channel_values"].get("__start__")
    return None
