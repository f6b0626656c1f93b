"""What holds a policy version gives it back when it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, interrupt

from art_langgraph import LLM, ARTCallbackHandler, ChatART, Ruler, Scenario, Trajectory, TrajectoryGroup, rollout
from art_langgraph.background.release import flush
from art_langgraph.trajectory import CompletionCall
from tests.support.homes.versions import holders
from tests.support.runs.graphs import counting
from tests.support.servers.trainer_server import TOKEN, TrainerServer

Held = Callable[[], list[str]]


@pytest.fixture
def held(connected: TrainerServer) -> Held:
    """The policies of which a rollout holds a version, one for each rollout that began in this test."""
    leases = connected.app.state.server.leases
    before = set(holders(leases))
    return lambda: [policy for rollout, held in holders(leases).items() if rollout not in before for policy in held]


def group() -> TrajectoryGroup:
    runs = [
        Trajectory(
            scenario=Scenario(id="s", input="x"),
            completions=[CompletionCall(id=said, message={"role": "assistant", "content": said}, started=0.0)],
        )
        for said in ("a", "b")
    ]
    return TrajectoryGroup(scenario=runs[0].scenario, trajectories=runs)


async def test_a_judge_function_gives_back_the_version_that_it_asked(held: Held) -> None:
    model, while_judging = ChatART(policy="agent", max_tokens=20), []

    async def judge(runs: Sequence[Trajectory]) -> list[float]:
        answer = await model.ainvoke("say 0.5")
        while_judging.append(held())
        return [float(answer.text)] * len(runs)

    judged = await Ruler(judge)(group())
    assert judged.rewards == [0.5, 0.5]
    assert while_judging == [["agent"]]
    await asyncio.to_thread(flush, 10)
    assert held() == []


async def test_a_chat_model_as_judge_gives_it_back(held: Held) -> None:
    llm = LLM(ChatART(policy="agent", max_tokens=200), cache=None, retries=0)
    await Ruler(llm)(group())
    assert llm.usage.calls > 0
    await asyncio.to_thread(flush, 10)
    assert held() == []


async def test_a_handler_gives_it_back_when_its_run_has_ended(held: Held) -> None:
    handler = ARTCallbackHandler()
    await counting().ainvoke({"messages": []}, {"callbacks": [handler]})
    assert handler.trajectory().versions == {"agent": [0]}
    await asyncio.to_thread(flush, 10)
    assert held() == []


async def test_a_handler_keeps_it_while_its_run_may_be_resumed(held: Held) -> None:
    model, handler = ChatART(policy="agent", max_tokens=20), ARTCallbackHandler()

    async def node(state: MessagesState) -> dict[str, Any]:
        said = await model.ainvoke("say hello")
        interrupt("and now?")
        return {"messages": [said]}

    graph = StateGraph(MessagesState).add_node("n", node).add_edge(START, "n").compile(InMemorySaver())
    config: RunnableConfig = {"callbacks": [handler], "configurable": {"thread_id": "1"}}
    await graph.ainvoke({"messages": []}, config)
    await asyncio.to_thread(flush, 10)
    assert held() == ["agent"]
    await graph.ainvoke(Command(resume="go on"), config)
    await asyncio.to_thread(flush, 10)
    assert held() == []


@pytest.mark.parametrize("how", ["function", "coroutine function"])
async def test_a_rollout_gives_it_back_where_its_key_is_a_function(held: Held, how: str) -> None:
    async def later() -> str:
        return TOKEN

    key: Any = (lambda: TOKEN) if how == "function" else later
    run = await rollout(counting(api_key=key), "x")
    assert run.error is None
    assert run.versions == {"agent": [0]}
    await asyncio.to_thread(flush, 10)
    assert held() == []
