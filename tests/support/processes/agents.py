"""Graphs and agents that run in worker processes, which import them by their names."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from langchain_core.runnables import Runnable
from langgraph.graph import START, MessagesState, StateGraph

from art_langgraph import ChatART, Scenario
from art_langgraph.capture.scope import current


def two_calls(scenario: Scenario) -> Runnable[Any, Any]:
    """A subgraph that asks the policy, and a node that asks it again. `fails`: the node raises."""
    model = ChatART(policy="agent", max_tokens=20)

    async def first(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke("say first")]}

    async def second(state: MessagesState) -> dict[str, Any]:
        scope = current()
        assert scope is not None
        scope.metadata["process"] = os.getpid()
        if scenario.metadata.get("fails"):
            raise RuntimeError("the tool is broken")
        return {"messages": [await model.ainvoke("say second")]}

    inner = StateGraph(MessagesState).add_node("first", first).add_edge(START, "first").compile()
    outer = StateGraph(MessagesState).add_node("inner", inner).add_node("second", second)
    return outer.add_edge(START, "inner").add_edge("inner", "second").compile()


async def _name_process(state: MessagesState) -> dict[str, Any]:
    return {"messages": [("ai", f"process {os.getpid()}")]}


graph = StateGraph(MessagesState).add_node("name", _name_process).add_edge(START, "name").compile()


def broken(scenario: Scenario) -> Runnable[Any, Any]:
    """A factory that fails."""
    raise KeyError("no such tool")


async def waits(scenario: Scenario) -> int:
    """Says in `place` which process it is in, and that it ended there; waits for the file `until`. `deaf`: does not end
    when it is cancelled."""
    place = Path(scenario.metadata["place"])
    began = place / f"began.{os.getpid()}.{scenario.input}.{time.monotonic_ns()}"
    began.touch()
    try:
        while not (place / "until").exists():
            try:
                await asyncio.sleep(0.02)
            except asyncio.CancelledError:
                if not scenario.metadata.get("deaf"):
                    raise
    finally:
        began.with_name(began.name.replace("began", "ended")).touch()
    return os.getpid()


class Stubborn(Exception):
    """Cannot be made again from its arguments."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(first)


async def outputs(scenario: Scenario) -> Any:
    """What is asked for: an output that cannot be pickled, or not be loaded; or the end of the process."""
    if scenario.input == "exit":
        sys.exit(3)
    return {"lock": {"text": "kept", "lock": threading.Lock()}, "stubborn": Stubborn("a", "b")}[scenario.input]
