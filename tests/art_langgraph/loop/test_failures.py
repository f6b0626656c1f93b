"""Failures speak: an error when all runs failed, a warning when many did, one for runs of which nothing was heard."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import AIMessage, AnyMessage
from langchain_core.runnables import Runnable
from langgraph.cache.memory import InMemoryCache
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import CachePolicy

from art_langgraph import (
    ARTError,
    ChatART,
    NodeRewards,
    RolloutsFailed,
    Scenario,
    TrainerClient,
    Trajectory,
    TrajectoryGroup,
    evaluate,
    gather,
    notices,
    rollout,
    train,
)
from tests.support.runs.chat_models import Answering
from tests.support.servers.trainer_server import TrainerServer


@pytest.fixture(autouse=True)
def nothing_warned_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices, "_notices", set())


def flaky(*broken: str) -> Runnable[Any, Any]:
    def node(state: MessagesState) -> dict[str, Any]:
        if (text := state["messages"][-1].text) in broken:
            raise KeyError(text)
        return {"messages": [AIMessage("fine")]}

    return StateGraph(MessagesState).add_node("node", node).add_edge(START, "node").compile()


def asking(policy: str) -> Runnable[Any, Any]:
    model = ChatART(policy=policy, max_tokens=4)

    async def node(state: MessagesState) -> dict[str, list[AnyMessage]]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    return StateGraph(MessagesState).add_node("model", node).add_edge(START, "model").compile()


async def test_a_gather_of_which_every_run_raised_says_so() -> None:
    with pytest.raises(RolloutsFailed, match=r"^8 of 8 runs raised: KeyError: 'a'$") as raised:
        await gather(flaky("a", "b"), ["a", "b"], 4, lambda _: 1.0, progress=False)
    assert isinstance(raised.value, ARTError)
    assert [run.error for run in raised.value.trajectories] == ["KeyError: 'a'"] * 4 + ["KeyError: 'b'"] * 4


async def test_many_runs_that_raised_are_counted_in_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    groups = await gather(flaky("a"), ["a", "b"], 4, lambda t: 0.0 if t.error else 1.0, progress=False, evaluation=True)
    assert [run.reward for run in groups[0].trajectories] == [0.0] * 4
    assert caplog.messages == ["4 of 8 runs raised: KeyError: 'a' (scenarios of which every run raised: 1 of 2)"]


async def test_a_policy_that_answers_what_cannot_be_parsed_is_measured(caplog: pytest.LogCaptureFixture) -> None:
    async def node(state: MessagesState) -> dict[str, Any]:
        await Answering().ainvoke(state["messages"])
        raise ValueError("no JSON")

    graph = StateGraph(MessagesState).add_node("node", node).add_edge(START, "node").compile()
    found = await evaluate(graph, ["a"], lambda _: 0.0, n=2, temperature=None, progress=False)
    assert (found.success_rate, found.failed) == (0.0, 2)
    assert "2 of 2 runs raised: ValueError: no JSON" in caplog.text


async def test_a_version_whose_runs_crash_is_measured_by_all_of_them() -> None:
    async def node(state: MessagesState) -> dict[str, Any]:
        answer = await Answering().ainvoke(state["messages"])
        if state["messages"][0].text != "easy":
            raise ValueError("no JSON")
        return {"messages": [answer]}

    def reward(run: Trajectory) -> float:
        return float(run.output["messages"][-1].text == "fine")

    graph = StateGraph(MessagesState).add_node("node", node).add_edge(START, "node").compile()
    measured = await evaluate(graph, ["easy", "hard"], reward, temperature=None, progress=False)
    assert (measured.success_rate, measured.mean, measured.failed, measured.unscored) == (0.5, 1.0, 1, 0)
    measured = await evaluate(graph, ["hard"], reward, temperature=None, progress=False)
    assert measured.success_rate == 0.0


async def test_a_few_runs_that_raised_are_data(caplog: pytest.LogCaptureFixture) -> None:
    counter = iter(range(20))

    def node(state: MessagesState) -> dict[str, Any]:
        if next(counter) == 3:
            raise KeyError("once")
        return {}

    graph = StateGraph(MessagesState).add_node("node", node).add_edge(START, "node").compile()
    await gather(graph, ["a"], 20, progress=False)
    assert caplog.messages == []


async def test_an_evaluation_of_which_no_run_is_of_use_raises() -> None:
    with pytest.raises(RolloutsFailed, match="2 of 2 runs raised: KeyError: 'a'"):
        await evaluate(flaky("a"), ["a"], lambda _: 1.0, n=2, progress=False)
    with pytest.raises(RolloutsFailed, match="1 of 1 runs have no reward: ZeroDivisionError"):
        await evaluate(flaky(), ["a"], lambda _: 1 / 0, progress=False)
    assert (await evaluate(flaky(), ["a"], progress=False)).n == 0


async def test_a_version_that_does_not_exist_is_no_success(connected: TrainerServer) -> None:
    with pytest.raises(RolloutsFailed, match=r"2 of 2 runs raised: .*policy 'agent' has no version '99'"):
        await evaluate(asking("agent"), ["a"], lambda _: 1.0, n=2, version=99, progress=False)


async def test_an_evaluation_knows_which_version_answered(connected: TrainerServer) -> None:
    assert (await evaluate(asking("agent"), ["a"], lambda _: 1.0, progress=False)).versions == {"agent": [0]}


async def test_runs_of_which_none_has_a_reward_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    def reward(_run: Trajectory) -> float:
        raise KeyError("answer")

    await gather(flaky(), ["a", "b"], 2, reward, progress=False)
    (said,) = caplog.messages
    assert said.startswith("4 of 4 runs have no reward: KeyError: 'answer' (test_failures.py, line ")
    assert said.endswith(", in reward)")


async def test_a_reward_that_is_no_function_is_refused_before_anything_runs() -> None:
    with pytest.raises(ARTError, match=r"the reward 1\.0 is no function"):
        await gather(flaky(), ["a"], 2, 1.0, progress=False)  # type: ignore[arg-type]


def misnamed(_run: Trajectory) -> NodeRewards:
    return NodeRewards(answr=1.0, other=0.5)


@pytest.mark.parametrize(
    ("graph", "reward", "message"),
    [
        (lambda: flaky("a"), lambda _: 1.0, "4 of 4 runs raised: KeyError: 'a'"),
        (lambda: asking("agent"), lambda _: 1 / 0, "4 of 4 runs have no reward: ZeroDivisionError"),
        (lambda: flaky(), lambda _: 1.0, "none of 4 runs has a completion of policy 'agent' to train: no chat model"),
        (
            lambda: asking("base"),
            lambda _: 1.0,
            "none of 4 runs has a completion of policy 'agent' .* they asked base. Name",
        ),
        (lambda: asking("agent"), misnamed, "it answered in 'model', and the NodeRewards name 'answr', 'other'"),
        (lambda: asking("agent"), lambda _: None, "4 of 4 runs have no reward: the reward function returned None"),
    ],
)
async def test_a_step_that_has_nothing_to_train_ends_the_loop(
    connected: TrainerServer, graph: Any, reward: Any, message: str
) -> None:
    async with TrainerClient() as client:
        steps = train(
            graph(),
            [Scenario(input="a")],
            policy="agent",
            reward=reward,
            steps=9,
            client=client,
            groups_per_step=1,
            n=4,
            progress=False,
        )
        with pytest.raises(RolloutsFailed, match=message):
            await anext(steps)


async def test_a_run_that_was_scored_and_not_heard_warns_once(
    connected: TrainerServer, caplog: pytest.LogCaptureFixture
) -> None:
    model = ChatART(policy="agent", max_tokens=4)

    async def in_a_thread(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await asyncio.get_running_loop().run_in_executor(None, model.invoke, "say two")]}

    async def foreign(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await FakeListChatModel(responses=["x"]).ainvoke("say two")]}

    def graph(node: Any) -> Runnable[Any, Any]:
        return StateGraph(MessagesState).add_node("node", node).add_edge(START, "node").compile()

    def reward(_: Trajectory) -> float:
        return 1.0

    await gather(graph(in_a_thread), ["a"], 3, reward, progress=False)
    await gather(graph(foreign), ["a"], 3, reward, progress=False)
    unheard, other = caplog.messages
    assert "no chat model was heard" in unheard
    assert "run_in_executor" in unheard
    assert "docs/capture/nothing-captured.md" in unheard
    assert "not from the trainer server. Use ChatART" in other
    await rollout(graph(in_a_thread), "a")  # unscored: nobody means to train it
    await rollout(asking("agent"), "a", reward)
    assert len(caplog.records) == 2
    assert {record.levelno for record in caplog.records} == {logging.WARNING}


async def test_a_run_whose_nodes_came_from_a_cache_is_told_of_caches(
    connected: TrainerServer, caplog: pytest.LogCaptureFixture
) -> None:
    model = ChatART(policy="agent", max_tokens=4)

    async def node(state: MessagesState) -> dict[str, Any]:
        return {"messages": [("ai", (await model.ainvoke("say two")).text)]}

    outline = StateGraph(MessagesState).add_node("node", node, cache_policy=CachePolicy(key_func=lambda *_: "key"))
    graph = outline.add_edge(START, "node").compile(cache=InMemoryCache())
    first, second = [await rollout(graph, "a", lambda _: 1.0) for _ in range(2)]
    assert (len(first.completions), len(second.completions)) == (1, 0)
    (warning,) = caplog.messages
    assert "came from a node cache" in warning
    assert "without a cache" in warning


async def test_a_call_without_an_answer_came_from_no_other_server(
    connected: TrainerServer, caplog: pytest.LogCaptureFixture
) -> None:
    model = ChatART(policy="agent", max_tokens=40)

    async def node(state: MessagesState) -> None:
        async for _ in model.astream("say a long answer that is left"):
            break

    graph = StateGraph(MessagesState).add_node("node", node).add_edge(START, "node").compile()
    await rollout(graph, "a", lambda _: 1.0)
    (warning,) = caplog.messages
    assert "none of its model calls has an answer" in warning
    assert "Use ChatART" not in warning


async def test_runs_that_are_scored_together_and_not_heard_warn_as_well(caplog: pytest.LogCaptureFixture) -> None:
    def judge(group: TrajectoryGroup) -> TrajectoryGroup:
        scored = [run.model_copy(update={"reward": 1.0}) for run in group.trajectories]
        return group.model_copy(update={"trajectories": scored})

    await gather(flaky(), ["a"], 2, group_reward=judge, progress=False)
    (warning,) = caplog.messages
    assert "a run has a reward and no completion to train: no chat model was heard" in warning
    assert notices.HELP in warning
