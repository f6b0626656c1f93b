"""Rollouts of real graphs through the real gateway: what a trajectory knows, and what becomes of failures."""

from __future__ import annotations

import asyncio
import operator
from pathlib import Path
from typing import Annotated, Any, TypedDict
from uuid import uuid4

import pytest
from langchain_core.messages import AnyMessage, HumanMessage
from langchain_core.runnables import Runnable
from langchain_core.tools import tool
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import RetryPolicy

from art_langgraph import (
    ChatART,
    GRPOConfig,
    Scenario,
    TrainerClient,
    Trajectory,
    TrajectoryGroup,
    TrajectoryStore,
    gather,
    rollout,
)
from art_langgraph.capture import flush, install, uninstall
from art_langgraph.credit import group_refs
from tests.support.servers.trainer_server import TrainerServer

pytestmark = pytest.mark.usefixtures("connected")


def one_node(**options: Any) -> Runnable[Any, Any]:
    model = ChatART(policy="agent", max_tokens=50, **options)

    async def node(state: MessagesState) -> dict[str, list[AnyMessage]]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    return StateGraph(MessagesState).add_node("model", node).add_edge(START, "model").compile()


def with_tools(fails: bool = False) -> Runnable[Any, Any]:
    @tool
    def double(value: int) -> str:
        """Double a number."""
        if fails:
            raise ValueError("broken")
        return str(2 * value)

    model = ChatART(policy="agent", max_tokens=50)

    async def node(state: MessagesState) -> dict[str, list[AnyMessage]]:
        last = state["messages"][-1]
        said = last if isinstance(last, HumanMessage) else HumanMessage(f"say it is {last.text}")
        return {"messages": [await model.ainvoke([said])]}

    def after(state: MessagesState) -> str:
        return "tools" if state["messages"][-1].tool_calls else END

    graph = StateGraph(MessagesState).add_node("model", node)
    graph.add_node("tools", ToolNode([double], handle_tool_errors=True))
    graph.add_edge(START, "model").add_conditional_edges("model", after, ["tools", END]).add_edge("tools", "model")
    return graph.compile()


async def test_a_trajectory_knows_nodes_completions_and_output() -> None:
    found = await rollout(one_node(), "say hello", lambda t: 1.0)
    assert found.output["messages"][-1].text == "hello"
    assert found.reward == 1.0
    assert [node.node for node in found.nodes] == ["model"]
    (call,) = found.completions
    assert (call.node, call.path, call.trainable) == ("model", ["model"], True)
    assert call.message == {"role": "assistant", "content": "hello"}
    assert found.completion_ids == [call.id]


async def test_a_rollout_has_the_run_id_that_langgraph_gave_it() -> None:
    run_id = uuid4()
    found = await rollout(one_node(), "say hello", config={"run_id": run_id})
    assert found.run_id == str(run_id)


async def test_tool_calls_are_recorded_with_their_place() -> None:
    found = await rollout(with_tools(), 'call double {"value": 4}')
    (call,) = found.tool_calls
    assert (call.tool, call.arguments, call.result, call.is_error) == ("double", {"value": 4}, "8", False)
    assert (call.node, call.tool_call_id) == ("tools", "call-double")
    assert len(found.completions) == 2
    assert found.output["messages"][-1].text == "it is 8"


async def test_a_tool_that_fails_is_an_error_of_the_tool() -> None:
    found = await rollout(with_tools(fails=True), 'call double {"value": 4}')
    assert found.error is None
    assert found.tool_calls[0].is_error
    assert "broken" in str(found.tool_calls[0].result)


async def test_parallel_branches_keep_their_own_completions() -> None:
    class State(TypedDict):
        said: Annotated[list[str], operator.add]

    model = ChatART(policy="agent")
    graph = StateGraph(State)
    for name in ("left", "right"):

        async def node(state: State, name: str = name) -> dict[str, list[str]]:
            return {"said": [(await model.ainvoke(f"say {name}")).text]}

        graph.add_node(name, node)
        graph.add_edge(START, name)
    found = await rollout(graph.compile(), {"said": []})
    assert {(one.node, (one.message or {})["content"]) for one in found.completions} == {
        ("left", "left"), ("right", "right"),
    }  # fmt: skip
    assert len({one.namespace for one in found.completions}) == 2


async def test_subgraphs_show_in_the_path() -> None:
    outer = StateGraph(MessagesState).add_node("child", one_node()).add_edge(START, "child").compile()
    found = await rollout(outer, "say deep")
    assert found.completions[0].path == ["child", "model"]


async def test_a_retried_node_supersedes_its_first_attempt() -> None:
    model, attempts = ChatART(policy="agent"), []

    async def node(state: MessagesState) -> dict[str, list[AnyMessage]]:
        answer = await model.ainvoke(f"say {len(attempts)}")
        attempts.append(answer)
        if len(attempts) == 1:
            raise ConnectionError("once")
        return {"messages": [answer]}

    graph = StateGraph(MessagesState).add_node("n", node, retry_policy=RetryPolicy(initial_interval=0.01))
    found = await rollout(graph.add_edge(START, "n").compile(), "x")
    assert found.error is None
    assert [one.superseded for one in found.completions] == ["retry", None]
    assert len(found.completion_ids) == 1


async def test_a_graph_that_raises_keeps_what_it_did() -> None:
    model = ChatART(policy="agent")

    async def node(state: MessagesState) -> dict[str, Any]:
        await model.ainvoke("say before")
        raise RuntimeError("after")

    graph = StateGraph(MessagesState).add_node("n", node).add_edge(START, "n").compile()
    found = await rollout(graph, "x", lambda t: -1.0 if t.error else 1.0)
    assert found.error == "RuntimeError: after"
    assert len(found.completions) == 1
    assert found.reward == -1.0


async def test_named_rewards_are_summed_and_kept() -> None:
    async def reward(trajectory: Trajectory) -> dict[str, float]:
        return {"a": 0.5, "b": 0.25}

    found = await rollout(one_node(), "say x", reward)
    assert found.reward == 0.75
    assert found.metrics == {"a": 0.5, "b": 0.25}


def raising(trajectory: Trajectory) -> float:
    raise KeyError("x")


@pytest.mark.parametrize(
    ("reward", "word"),
    [(raising, "KeyError"), (lambda t: float("nan"), "nan"), (lambda t: {"a": float("inf")}, "inf"),
     (lambda t: "good", "ValueError")],
)  # fmt: skip
async def test_a_reward_that_fails_is_never_trained_on(reward: Any, word: str) -> None:
    found = await rollout(one_node(), "say x", reward)
    assert found.reward is None
    assert word in str(found.reward_error)
    (group,) = group_refs([TrajectoryGroup(scenario=found.scenario, trajectories=[found])])
    assert group.trajectories[0].reward is None


async def test_groups_train_a_policy() -> None:
    async with TrainerClient() as trainer:
        await trainer.create_policy("trained")
        model = ChatART(policy="trained", max_tokens=20)

        async def node(state: MessagesState) -> dict[str, list[AnyMessage]]:
            return {"messages": [await model.ainvoke(state["messages"])]}

        graph = StateGraph(MessagesState).add_node("m", node).add_edge(START, "m").compile()
        rewards = iter([1.0, 0.0, 0.5, 0.2])
        groups = await gather(graph, ["say a", {"messages": [("user", "say b")]}], n=2, reward=lambda t: next(rewards))
        assert [len(group.trajectories) for group in groups] == [2, 2]
        result = await trainer.train_step("trained", groups, GRPOConfig(lr=1e-3))
        assert result.version == 1
        assert result.metrics["trajectories"] == 4
        assert [one.version for one in await trainer.versions("trained")] == [0, 1]
        assert (await trainer.completion(groups[0].trajectories[0].completion_ids[0])).rollout is not None
        nothing = await gather(graph, ["say c"], n=2)
        result = await trainer.train_step("trained", nothing)
        assert result.version == 1
        assert result.metrics["trajectories_skipped"] == {"no_reward": 2}


async def test_a_hundred_rollouts_at_once_are_not_mixed() -> None:
    groups = await gather(one_node(), [f"say {i}" for i in range(100)], n=1, max_concurrency=100)
    for index, group in enumerate(groups):
        (trajectory,) = group.trajectories
        assert trajectory.error is None
        (call,) = trajectory.completions
        assert (call.message or {})["content"] == str(index)
    async with TrainerClient() as trainer:
        for group in groups[::10]:
            (one,) = group.trajectories
            found = await trainer.completion(one.completion_ids[0])
            assert found.rollout == one.rollout_id


async def test_the_temperature_of_a_rollout_overrides_the_graphs(connected: TrainerServer) -> None:
    found = await rollout(one_node(temperature=0.0), "say x", temperature=0.9)
    assert found.error is None
    async with TrainerClient() as trainer:
        assert (await trainer.completion(found.completion_ids[0])).sampling.temperature == 0.9


async def test_a_rollout_over_its_time_is_an_error() -> None:
    found = await rollout(one_node(), "slow", timeout=0.3)
    assert "TimeoutError" in str(found.error)
    assert "longer than timeout=0.3 s: raise timeout=" in str(found.error)


async def test_cancelling_gather_cancels_its_rollouts() -> None:
    task = asyncio.create_task(gather(one_node(), ["slow"], n=4))
    await asyncio.sleep(0.3)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_graph_may_be_made_for_each_rollout() -> None:
    seen = []

    async def factory(scenario: Scenario) -> Runnable[Any, Any]:
        seen.append(scenario.id)
        return one_node()

    await gather(factory, [Scenario(id="one", input={"messages": [("user", "say x")]})], n=2)
    assert seen == ["one", "one"]


async def test_the_store_gives_back_what_was_written(tmp_path: Path) -> None:
    store = TrajectoryStore(tmp_path / "store.sqlite")
    found = await rollout(with_tools(), 'call double {"value": 4}', lambda t: 0.5, store=store)
    back = store.get(found.id)
    assert back is not None
    assert back.model_dump_json() == found.model_dump_json()
    assert back.completion_ids == found.completion_ids
    assert len(TrajectoryStore(store.path)) == 1


async def test_installed_capture_records_every_run_of_the_process(tmp_path: Path) -> None:
    store = TrajectoryStore(tmp_path / "store.sqlite")
    install(store)
    try:
        graph = with_tools()
        await asyncio.gather(*(graph.ainvoke({"messages": [("user", 'call double {"value": 4}')]}) for _ in range(3)))
        await rollout(one_node(), "say x")  # records itself
        await asyncio.to_thread(flush)
    finally:
        uninstall()
    await graph.ainvoke({"messages": [("user", "say not captured")]})
    assert len(store) == 3
    for one in store:
        assert len(one.completion_ids) == 2
        assert [call.tool for call in one.tool_calls] == ["double"]
