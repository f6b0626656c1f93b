"""Rollouts inside of runs: each records itself, and nothing is trained twice."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph

from art_langgraph import ARTCallbackHandler, Trajectory, TrajectoryStore, rollout
from art_langgraph.capture import flush, install, uninstall
from art_langgraph.capture.scope import Scope
from tests.support.runs.chat_models import Answering


def asking(model: Any) -> StateGraph[Any]:
    async def node(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"][-1:])]}

    return StateGraph(MessagesState).add_node("inner", node).add_edge(START, "inner")


def enclosing(inner: list[Trajectory]) -> Any:
    """A graph that asks a model, makes a rollout, and asks the model again."""
    model = Answering()

    async def node(state: MessagesState) -> dict[str, Any]:
        await model.ainvoke("before")
        inner.append(await rollout(asking(model).compile(checkpointer=InMemorySaver()), "inside"))
        return {"messages": [await model.ainvoke("after")]}

    return StateGraph(MessagesState).add_node("outer", node).add_edge(START, "outer").compile()


def asked(found: Trajectory) -> list[tuple[Any, list[str]]]:
    return [(call.messages[-1]["content"], call.path) for call in found.completions]


OUTER = [("before", ["outer"]), ("after", ["outer"])]


async def test_a_rollout_inside_a_rollout_is_recorded_once() -> None:
    inner: list[Trajectory] = []
    found = await rollout(enclosing(inner), "x")
    assert found.error is None
    assert asked(found) == OUTER
    assert asked(inner[0]) == [("inside", ["inner"])]
    assert [node.path for node in found.nodes] == [["outer"]]
    assert inner[0].thread_id == inner[0].rollout_id


async def test_a_rollout_inside_a_run_that_a_handler_hears_is_recorded_once(tmp_path: Path) -> None:
    inner: list[Trajectory] = []
    store, handler = TrajectoryStore(tmp_path / "s.sqlite"), ARTCallbackHandler()
    install(store)
    try:
        await enclosing(inner).ainvoke({"messages": []}, {"callbacks": [handler]})
        await asyncio.to_thread(flush)
    finally:
        uninstall()
    assert asked(handler.trajectory()) == OUTER
    assert asked(inner[0]) == [("inside", ["inner"])]
    assert [asked(found) for found in store] == [OUTER]


def test_a_rollout_may_ask_for_the_newest_version() -> None:
    scope = Scope(version={"agent": "latest", "critic": 1}, temperature=0.5)
    assert scope.headers == {
        "X-ART-Rollout": scope.rollout_id,
        "X-ART-Temperature": "0.5",
        "X-ART-Version": "agent=latest,critic=1",
    }
