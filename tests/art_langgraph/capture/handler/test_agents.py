"""Agents inside agents: each has its name in paths and filters, and ARTMiddleware says whom it does not reach."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from deepagents import create_deep_agent
from deepagents.backends import StateBackend
from deepagents.middleware.filesystem import FilesystemMiddleware
from deepagents.middleware.summarization import SummarizationMiddleware
from langchain.agents import create_agent
from langchain_core.language_models.fake_chat_models import FakeListChatModel
from langchain_core.tools import BaseTool, tool
from langgraph.graph import START, MessagesState, StateGraph

from art_langgraph import ARTMiddleware, NodeRewards, Trajectory, TrajectoryGroup, notices, rollout
from art_langgraph.credit import group_refs, matches
from art_langgraph.trajectory import Place
from tests.support.runs.chat_models import MakeModel
from tests.support.servers.trainer_server import TrainerServer


def as_tool(agent: Any) -> BaseTool:
    @tool
    async def research(question: str) -> str:
        """Ask the researcher."""
        found = await agent.ainvoke({"messages": [("user", question)]})
        return str(found["messages"][-1].text)

    return research


class Untrained(FakeListChatModel):
    """Another model than the policy's."""

    def bind_tools(self, tools: Any, **options: Any) -> Any:
        return self


ASK = 'call research {"question": "say found"}'


async def test_sub_agents_have_their_names_in_paths(make: MakeModel) -> None:
    researcher = create_agent(make(), [], name="researcher")
    found = await rollout(create_agent(make(), [as_tool(researcher)], name="boss"), ASK)
    boss, sub, again = found.completions
    assert boss.path == again.path == ["boss", "model"]
    assert sub.path == ["boss", "tools", "researcher", "model"]
    assert [one.agent for one in found.completions] == ["boss", "researcher", "boss"]
    assert {node.agent for node in found.nodes} == {"boss", "researcher"}

    nested = StateGraph(MessagesState).add_node("researcher", researcher).add_node("other", researcher)
    found = await rollout(nested.add_edge(START, "researcher").add_edge("researcher", "other").compile(), "say x")
    assert [one.path for one in found.completions] == [["researcher", "model"], ["other", "researcher", "model"]]

    nameless = create_agent(make(), [as_tool(create_agent(make(), []))])
    found = await rollout(nameless, ASK)
    assert [one.path for one in found.completions] == [["model"], ["tools", "model"], ["model"]]


async def test_filters_and_rewards_name_sub_agents(make: MakeModel) -> None:
    researcher = create_agent(make(), [], name="researcher")

    def reward(run: Trajectory) -> NodeRewards:
        return NodeRewards({"researcher/model": 1.0, "boss": 0.5})

    found = await rollout(create_agent(make(), [as_tool(researcher)], name="boss"), ASK, reward)
    boss, sub, again = (str(call.id) for call in found.completions)
    group = TrajectoryGroup(scenario=found.scenario, trajectories=[found])
    rewarded = {
        one.scenario_id.partition("/")[2]: one.trajectories[0].completions for one in group_refs([group], nodes=["*"])
    }
    assert rewarded == {"researcher/model": [sub], "boss": [boss, again]}
    found.node_rewards = None
    for nodes, ids in (
        (["researcher"], [sub]),
        (["researcher/*"], [sub]),
        (["*/researcher/model"], [sub]),
        (["boss"], [boss, again]),
        (["boss/model"], [boss, again]),
        (["model"], [boss, sub, again]),
        (["boss/*"], [boss, sub, again]),
    ):
        (ref,) = group_refs([group], nodes=nodes)
        assert ref.trajectories[0].completions == ids, nodes


def test_a_pattern_is_matched_from_the_agents_name_on() -> None:
    place = Place(node="think", agent="planner", path=["boss", "tools", "planner", "plan", "think"])
    assert matches(place, "planner/plan/think")
    assert matches(place, "planner/*")
    assert not matches(place, "tools/planner/*")
    assert not matches(place, "plan/think")


async def test_middleware_warns_of_an_agent_in_a_tool_that_it_does_not_reach(
    connected: TrainerServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices, "_notices", set())
    routed = ARTMiddleware(policy="agent", max_tokens=60)
    never = Untrained(responses=["not trained"])
    with caplog.at_level(logging.WARNING, "art_langgraph"):
        for _ in range(2):
            researcher = create_agent(never, [], name="researcher")
            found = await rollout(create_agent(never, [as_tool(researcher)], middleware=[routed]), ASK)
            assert [call.policy for call in found.completions] == ["agent", None, "agent"]
    (warning,) = caplog.messages
    assert "'tools/researcher'" in warning
    assert "give its `middleware` the same ARTMiddleware" in warning
    assert notices.HELP in warning

    caplog.clear()
    with caplog.at_level(logging.WARNING, "art_langgraph"):
        researcher = create_agent(never, [], name="reached", middleware=[routed])
        found = await rollout(create_agent(never, [as_tool(researcher)], middleware=[routed]), ASK)
    assert [call.policy for call in found.completions] == ["agent"] * 3
    assert caplog.messages == []


async def test_sub_agents_of_a_deep_agent(
    connected: TrainerServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices, "_notices", set())
    routed = ARTMiddleware(policy="agent", max_tokens=60)
    never = Untrained(responses=["not trained"])
    writer: Any = {"name": "writer", "description": "Writes.", "system_prompt": "Write."}

    def task(name: str) -> str:
        return f'call task {{"description": "x", "subagent_type": "{name}"}}'

    async def run(agent: Any, *answers: str) -> Trajectory:
        connected.engine["answers"][:] = answers
        with caplog.at_level(logging.WARNING, "art_langgraph"):
            found = await rollout(agent, "go")
        assert found.error is None
        assert connected.engine["answers"] == []
        return found

    deep = create_deep_agent(model=routed.model, subagents=[writer], name="deep")
    found = await run(deep, task("writer"), "written", task("general-purpose"), "done", "end")
    assert ["/".join(call.path) for call in found.completions] == [
        "deep/model",
        "deep/tools/writer/model",
        "deep/model",
        "deep/tools/general-purpose/model",
        "deep/model",
    ]
    assert {call.policy for call in found.completions} == {"agent"}

    own: Any = {**writer, "model": never, "middleware": [routed]}
    found = await run(create_deep_agent(never, middleware=[routed], subagents=[own]), task("writer"), "written", "end")
    assert [call.policy for call in found.completions] == ["agent"] * 3
    assert caplog.messages == []

    found = await run(create_deep_agent(never, middleware=[routed], subagents=[writer]), task("writer"), "end")
    assert [call.policy for call in found.completions] == ["agent", None, "agent"]
    (warning,) = caplog.messages
    assert "'tools/writer'" in warning


async def test_a_summary_of_a_deep_agent_is_no_turn_of_the_agent(make: MakeModel, connected: TrainerServer) -> None:
    """Deep Agents summarize inside the node in which the agent asks its model."""
    summarize = SummarizationMiddleware(make(), backend=StateBackend(), trigger=("messages", 3), keep=("messages", 1))
    connected.engine["answers"][:] = ['call research {"question": "x"}', "the summary", "the end"]
    middleware: list[Any] = [FilesystemMiddleware(backend=StateBackend()), summarize]
    agent = create_agent(
        make(), [as_tool(create_agent(Untrained(responses=["found"]), []))], middleware=middleware, name="deep"
    )
    run = await rollout(agent, "go", lambda _: 1.0)
    assert run.error is None
    ours = [call for call in run.completions if call.id is not None]
    assert ["/".join(call.path) for call in ours] == ["deep/model", "deep/model/summarization", "deep/model"]
    group = TrajectoryGroup(scenario=run.scenario, trajectories=[run])
    for nodes, ids in ((["model"], [ours[0].id, ours[2].id]), (["summarization"], [ours[1].id])):
        (ref,) = group_refs([group], nodes=nodes)
        assert ref.trajectories[0].completions == ids
