"""Where something happened in a graph: the path names nodes, whatever LangGraph adds to a checkpoint namespace."""

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict

import pytest
from langchain.agents import create_agent
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import RetryPolicy, Send

from art_langgraph import NodeRewards, TrajectoryGroup, rollout
from art_langgraph.credit import group_refs
from tests.support.runs.chat_models import Answering


class Said(TypedDict):
    said: Annotated[list[str], operator.add]


async def test_a_graph_that_a_node_calls_three_times_has_the_same_path_each_time() -> None:
    model = Answering()

    async def ask(state: Said) -> dict[str, list[str]]:
        return {"said": [(await model.ainvoke("x")).text]}

    inner = StateGraph(Said).add_node("ask", ask).add_edge(START, "ask").compile()

    async def thrice(state: Said) -> dict[str, list[str]]:
        return {"said": [text for _ in range(3) for text in (await inner.ainvoke({"said": []}))["said"]]}

    found = await rollout(StateGraph(Said).add_node("thrice", thrice).add_edge(START, "thrice").compile(), {"said": []})
    assert [call.path for call in found.completions] == [["thrice", "ask"]] * 3
    assert len({call.namespace for call in found.completions}) == 3
    assert len(found.completion_ids) == 3


async def test_an_agent_that_is_called_twice_keeps_its_name_in_the_path() -> None:
    agent = create_agent(Answering(), [], name="researcher")

    async def twice(state: MessagesState) -> dict[str, Any]:
        for _ in range(2):
            await agent.ainvoke({"messages": [("user", "x")]})
        return {}

    graph = StateGraph(MessagesState).add_node("twice", twice).add_edge(START, "twice").compile()
    found = await rollout(graph, "x")
    assert [call.path for call in found.completions] == [["twice", "researcher", "model"]] * 2


@pytest.mark.parametrize("fan_out", [False, True])
async def test_rewards_and_filters_reach_the_attempt_that_counts(fan_out: bool) -> None:
    model, tries = Answering(), iter(range(100))

    async def flaky(state: Said) -> dict[str, list[str]]:
        answer = await model.ainvoke("x")
        if next(tries) < 2:
            raise ConnectionError("not yet")
        return {"said": [answer.text]}

    inner = StateGraph(Said).add_node("flaky", flaky).add_edge(START, "flaky").compile()
    graph = StateGraph(Said).add_node("work", inner, retry_policy=RetryPolicy(initial_interval=0.001, jitter=False))
    if fan_out:
        graph.add_conditional_edges(START, lambda _: [Send("work", {"said": []})], ["work"])
    else:
        graph.add_edge(START, "work")
    found = await rollout(
        graph.compile(checkpointer=InMemorySaver()), {"said": []}, lambda _: NodeRewards(**{"work/flaky": 1.0})
    )
    assert found.error is None
    assert [(call.path, call.superseded) for call in found.completions] == [
        (["work", "flaky"], "retry"),
        (["work", "flaky"], "retry"),
        (["work", "flaky"], None),
    ]
    good = [found.completions[-1].id]
    group = TrajectoryGroup(scenario=found.scenario, trajectories=[found])
    (rewarded,) = group_refs([group])
    assert rewarded.trajectories[0].completions == good
    found.node_rewards = None
    (chosen,) = group_refs([group], nodes=["work/flaky"])
    assert chosen.trajectories[0].completions == good
