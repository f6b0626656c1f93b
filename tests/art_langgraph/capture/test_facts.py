"""What a trajectory says of the run besides what happened in it."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph

from art_langgraph import TrajectoryStore, evaluate, rollout
from tests.support.runs.chat_models import MakeModel


def asking(model: Any) -> StateGraph[Any]:
    async def node(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"][-1:])]}

    return StateGraph(MessagesState).add_node("n", node).add_edge(START, "n")


@pytest.mark.parametrize("asked", ["agent", "agent@0"])
@pytest.mark.parametrize("streaming", [False, True])
async def test_a_trajectory_says_which_version_answered(make: MakeModel, asked: str, streaming: bool) -> None:
    found = await rollout(asking(make(asked, streaming=streaming)).compile(), "say x")
    (call,) = found.completions
    assert (call.model, call.policy, call.version) == (asked, "agent", 0)
    assert found.versions == {"agent": [0]}


async def test_every_choice_says_its_version_and_the_base_model_has_none(make: MakeModel) -> None:
    several, base = make(n=2), make("base")

    async def node(state: MessagesState) -> dict[str, Any]:
        await several.agenerate([[HumanMessage("say x")]])
        return {"messages": [await base.ainvoke("say y")]}

    found = await rollout(StateGraph(MessagesState).add_node("n", node).add_edge(START, "n").compile(), "x")
    assert [call.version for call in found.completions] == [0, 0, None]
    assert found.versions == {"agent": [0]}


async def test_facts_of_a_rollout_are_kept_apart_from_the_users(make: MakeModel, tmp_path: Any) -> None:
    store = TrajectoryStore(tmp_path / "s.sqlite")
    graph = asking(make()).compile(checkpointer=InMemorySaver(), name="asks")
    mine = {"evaluation": True, "version": "of my prompt", "run_id": "mine", "thread_id": "mine"}
    made = await rollout(graph, "say x", metadata=mine, version={"agent": 0}, temperature=0.5, store=store)
    found = store.get(made.id)
    assert found is not None
    for one in (made, found):
        assert one.metadata == mine
        assert (one.evaluation, one.temperature, one.requested_version) == (False, 0.5, {"agent": 0})
        assert (one.graph_id, one.thread_id) == ("asks", one.rollout_id)
        assert one.run_id not in (None, "mine")
        assert one.versions == {"agent": [0]}
    measured = await evaluate(graph, ["say x"], progress=False)
    assert [(one.evaluation, one.metadata) for one in measured.trajectories] == [(True, {})]
