"""From a callback handler to a trajectory, and from there to a training step."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, interrupt

from art_langgraph import ARTCallbackHandler, NodeRewards, Trajectory, TrajectoryGroup, TrajectoryStore
from art_langgraph.credit import group_refs
from tests.support.runs.chat_models import MakeModel
from trainer_server.wire import ConfigError


def asking(model: Any) -> StateGraph[Any]:
    def node(state: MessagesState) -> dict[str, Any]:
        return {"messages": [model.invoke(state["messages"][-1:])]}

    return StateGraph(MessagesState).add_node("n", node).add_edge(START, "n")


def test_a_handler_gives_a_trajectory_without_an_event_loop(make: MakeModel, tmp_path: Any) -> None:
    graph = asking(make()).compile(name="asks")

    def ran(text: str, **given: Any) -> Trajectory:
        handler = ARTCallbackHandler()
        config: Any = {"callbacks": [handler], "configurable": {"thread_id": "t"}, "metadata": {"mine": 1}}
        graph.invoke({"messages": [("user", f"say {text}")]}, config)
        return handler.trajectory(**given)

    given = ran("one", scenario={"id": "s", "input": "x"}, reward=1.0)
    assert (given.scenario.id, given.reward, given.final_text, given.versions) == ("s", 1.0, "one", {"agent": [0]})
    assert (given.graph_id, given.thread_id, given.metadata["mine"]) == ("asks", "t", 1)
    assert given.run_id
    assert given.seconds > 0
    parts = ran("two", scenario=given.scenario, reward={"a": 0.25, "b": 0.5}, output="other")
    assert (parts.reward, parts.metrics, parts.final_text) == (0.75, {"a": 0.25, "b": 0.5}, "other")
    by_node = ran("three", reward=NodeRewards(n=0.5))
    assert by_node.node_rewards == {"n": 0.5}
    by_function = ran("four", reward=lambda run: float(run.final_text == "four"))
    assert by_function.reward == 1.0
    assert by_function.scenario.input == {"messages": [["user", "say four"]]}

    group = TrajectoryGroup(scenario=given.scenario, trajectories=[given, parts])
    (ref,) = group_refs([group], policy="agent")
    assert [(one.reward, one.completions) for one in ref.trajectories] == [
        (1.0, given.completion_ids),
        (0.75, parts.completion_ids),
    ]
    store = TrajectoryStore(tmp_path / "s.sqlite")
    store.add(given)
    assert store.get(given.id) is not None

    async def later(run: Trajectory) -> float:
        import asyncio

        await asyncio.sleep(0)
        return 1.0

    with pytest.raises(ConfigError, match="is async"):
        ran("five", reward=later)


def test_an_async_reward_function_is_refused_uncalled() -> None:
    async def function(run: Trajectory) -> float:
        raise AssertionError("called")

    class Object:
        async def __call__(self, run: Trajectory) -> float:
            raise AssertionError("called")

    for reward in (function, functools.partial(function), Object()):
        with pytest.raises(ConfigError, match="is async: await it"):
            ARTCallbackHandler().trajectory("x", reward=reward)


def test_a_handler_hears_a_run_that_raises_and_one_that_is_resumed(make: MakeModel) -> None:
    def fails(state: MessagesState) -> None:
        raise ValueError("too bad")

    handler = ARTCallbackHandler()
    graph = asking(make()).add_node("f", fails).add_edge("n", "f").compile()
    with pytest.raises(ValueError, match="too bad"):
        graph.invoke({"messages": [("user", "say x")]}, {"callbacks": [handler]})
    failed = handler.trajectory(reward=0.0)
    assert (failed.error, failed.reward, failed.final_text) == ("ValueError: too bad", 0.0, "x")

    def waits(state: MessagesState) -> dict[str, Any]:
        return {"messages": [("ai", interrupt("?"))]}

    handler = ARTCallbackHandler()
    graph = asking(make()).add_node("w", waits).add_edge("n", "w").compile(checkpointer=InMemorySaver())
    config: Any = {"callbacks": [handler], "configurable": {"thread_id": "t"}}
    graph.invoke({"messages": [("user", "say x")]}, config)
    graph.invoke(Command(resume="yes"), config)
    resumed = handler.trajectory()
    assert resumed.final_text == "yes"
    assert resumed.scenario.input == {"messages": [["user", "say x"]]}
    assert len(resumed.completion_ids) == 1
