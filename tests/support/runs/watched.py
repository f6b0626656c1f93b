"""Runs for the dashboard, made by real rollouts: a graph with branches, a retry, a subgraph, MCP calls, odd text."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import RetryPolicy, Send

from art_langgraph import ChatART, GRPOConfig, Scenario, TrainerClient, evaluate, gather
from art_langgraph.background.reports import flush, report_again
from art_langgraph.trajectory import Trajectory, TrajectoryGroup
from art_mcp import connect
from tests.support.mcp.commands import NOTES

HOSTILE = (
    "<script>document.title='owned'</script><img src=x onerror=alert(1)>\u202egnp.exe\x1b[31mred\u2028" + "x" * 9000
)
"""A task as a malicious user would send it: HTML, a mark that turns the text around, an ANSI sequence, a long line."""


class State(MessagesState):
    """Of the graph."""

    notes: Annotated[list[str], operator.add]


class Part(TypedDict):
    """What one branch looks at."""

    topic: str


def assistant(model: Any, tools: Sequence[Any]) -> Any:
    """A graph with a plan, two branches of which one is tried twice, and an agent that calls an MCP server."""
    tries = itertools.count()

    async def plan(state: State) -> dict[str, Any]:
        return {"messages": [await model.ainvoke("say first look, then write")]}

    async def look(part: Part) -> dict[str, Any]:
        found = await model.ainvoke(f"say {part['topic']} is fine")
        if part["topic"] == "the weather" and next(tries) % 2 == 0:
            raise ConnectionError("the weather service did not answer")
        return {"notes": [str(found.content)]}

    def branches(state: State) -> list[Send]:
        return [Send("look", {"topic": topic}) for topic in ("the weather", "the road")]

    async def act(state: State) -> dict[str, Any]:
        done = state["messages"][-1].type == "tool"
        asked = "say done: the note is written" if done else 'call write_note {"path": "today.md", "text": "sunny"}'
        return {"messages": [await model.bind_tools(tools).ainvoke(asked)]}

    writer = StateGraph(State).add_node("act", act).add_node("tools", ToolNode(tools)).add_edge(START, "act")
    inner = writer.add_conditional_edges("act", tools_condition).add_edge("tools", "act").compile()
    graph = StateGraph(State).add_node("plan", plan).add_node("writer", inner)
    graph.add_node(
        "look", look, retry_policy=RetryPolicy(max_attempts=2, initial_interval=0.01, retry_on=ConnectionError)
    )
    graph.add_edge(START, "plan").add_conditional_edges("plan", branches, ["look"])
    return graph.add_edge("look", "writer").add_edge("writer", END).compile(name="assistant")


async def make_runs(notes: Path) -> list[TrajectoryGroup]:
    """Two groups by two versions, of which one teaches nothing; a run that fails; an evaluation. Reports are sent when
    this returns.

    Args:
        notes: A directory of notes. Each run writes into a copy of its own.
    """
    scenarios = [
        Scenario(input={"messages": "Write today's note."}, id="note", metadata={"day": 1}),
        Scenario(input={"messages": HOSTILE}, id="<b>hostile</b>"),
    ]
    numbers = itertools.count()

    def reward(run: Trajectory) -> dict[str, float]:
        same = run.scenario.id != "note"
        return {"written": 0.5, "polite": 0.0 if same else (next(numbers) % 4) / 4}

    model = ChatART(policy="agent", max_tokens=60)
    groups: list[TrajectoryGroup] = []
    async with TrainerClient() as client, connect([*NOTES, "{world}"], worlds=notes) as server:
        graph = assistant(model, await server.tools())
        for _ in range(2):
            made = await gather(graph, scenarios, 4, reward, temperature=1.0, progress=False)
            groups += made
            await client.train_step("agent", made, GRPOConfig(lr=1e-3))
        await evaluate(graph, scenarios[:1], lambda run: 1.0, n=2, version=1, progress=False)
    for run in groups[0].trajectories[:1]:
        run.reward_reason = "The note is short, and says what was asked."
        report_again(run)
    flush(30)
    return groups
