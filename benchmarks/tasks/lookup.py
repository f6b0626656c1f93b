"""The task `lookup`: questions to `mcp-server-time`, a server of another project, by a graph that looks up and answers.

The node `call` has the server's tools, and one answer of the model, whose calls `tools` runs; the node `answer` has the
results and no tools. So a model that repeats its call until its turns end, as small ones do, can answer here.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from art_examples.learning.task import Recipe, Task
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AnyMessage, SystemMessage
from langchain_core.tools import BaseTool
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.prebuilt import ToolNode, tools_condition

from art_langgraph import GRPOConfig
from art_mcp import connect
from art_mcp.scenarios.generate import generate_scenarios
from art_mcp.specialization.settings import SYSTEM
from art_mcp.specialization.verify import solved, verify
from benchmarks.tasks.time_zones import TABLES, server_command


def build_graph(model: BaseChatModel, tools: Sequence[BaseTool]) -> CompiledStateGraph:
    """Builds the graph over MessagesState.

    Args:
        model: The chat model of both nodes.
        tools: The tools of the node `call`.
    """
    bound, system = model.bind_tools(tools), SystemMessage(SYSTEM)

    async def call(state: MessagesState) -> dict[str, list[AnyMessage]]:
        return {"messages": [await bound.ainvoke([system, *state["messages"]])]}

    async def answer(state: MessagesState) -> dict[str, list[AnyMessage]]:
        return {"messages": [await model.ainvoke([system, *state["messages"]])]}

    graph = StateGraph(MessagesState)
    graph.add_node("call", call)
    graph.add_node("tools", ToolNode(tools, handle_tool_errors=True))
    graph.add_node("answer", answer)
    graph.add_edge(START, "call")
    graph.add_conditional_edges("call", tools_condition, ["tools", END])
    graph.add_edge("tools", "answer")
    graph.add_edge("answer", END)
    return graph.compile(name="lookup")


SCENARIOS = 480
RECIPE = Recipe(
    warm_start=None, config=GRPOConfig(lr=1e-4, token_budget=2048), steps=24, groups_per_step=8, dynamic_sampling=1
)


@asynccontextmanager
async def lookup(seed: int = 0) -> AsyncIterator[Task]:
    """The task for a seed: questions that one call answers. Held-out ones have arguments that are not trained."""
    async with connect(server_command()) as server:
        divided = await generate_scenarios(server, SCENARIOS, resources=TABLES, seed=0, progress=False)
        training, held_out = (
            [scenario for scenario in scenarios if len(scenario.tools) == 1]
            for scenarios in (divided.train, divided.held_out)
        )
        tools = await server.tools()
        yield Task(
            name="lookup",
            graph=lambda model: build_graph(model, tools),
            training=random.Random(seed).sample(training, len(training)),
            held_out=held_out,
            demonstrations=[],
            reward=verify(),
            success=solved,
            max_tokens=96,
            recipe=RECIPE,
        )
