"""Graphs that run in Ray workers, made by functions that a worker imports by their names."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from langchain_core.runnables import Runnable
from langgraph.graph import START, MessagesState, StateGraph

from art_langgraph import ChatART, Scenario
from art_langgraph.capture.scope import current


def two_calls(scenario: Scenario) -> Runnable[Any, Any]:
    """A subgraph that asks the policy, and a node that asks it again.

    Before the second call the run says in a file of `place` where it is, and waits for the file `until`, where its
    scenario names them; `sleeps`: for ever; `fails`: the node raises.
    """
    model = ChatART(policy="p", max_tokens=20)

    async def first(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke("say first")]}

    async def second(state: MessagesState) -> dict[str, Any]:
        told, scope = scenario.metadata, current()
        assert scope is not None
        scope.metadata["node"] = node_address()
        if "place" in told:
            Path(told["place"], f"{node_address()}.{scope.rollout_id}").touch()
        if "until" in told:
            while not Path(told["until"]).exists():
                await asyncio.sleep(0.02)
        if told.get("sleeps"):  # no timer wakes the loop meanwhile
            await asyncio.Event().wait()
        if told.get("fails"):
            raise RuntimeError("the tool is broken")
        return {"messages": [await model.ainvoke("say second")]}

    inner = StateGraph(MessagesState).add_node("first", first).add_edge(START, "first").compile()
    outer = StateGraph(MessagesState).add_node("inner", inner).add_node("second", second)
    return outer.add_edge(START, "inner").add_edge("inner", "second").compile()


def node_address() -> str:
    """The address of the node that runs this; of the local process where Ray runs none of it."""
    try:
        import ray
    except ImportError:
        return "local"
    return str(ray.util.get_node_ip_address()) if ray.is_initialized() else "local"


def broken(scenario: Scenario) -> Runnable[Any, Any]:
    """A factory that fails."""
    raise KeyError("no such tool")
