"""The agent: a model node and a tool node in a loop, until it has answered. It has no code for RL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, SystemMessage
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode

SYSTEM = "Search the emails by keywords, read the email that has the answer, then answer. What is newer counts."
MAX_TURNS = 6
"""Maximum number of model calls in a run."""


def build_graph(model: BaseChatModel, tools: Sequence[BaseTool]) -> Runnable[Any, Any]:
    """A graph of two nodes: model, tools.

    Args:
        model: The chat model.
        tools: The tools of the mailbox. A call of `answer` ends the run.
    """
    bound = model.bind_tools(tools)

    async def call_model(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await bound.ainvoke([SystemMessage(SYSTEM), *state["messages"]])]}

    def after_model(state: MessagesState) -> str:
        last = state["messages"][-1]
        return "tools" if isinstance(last, AIMessage) and last.tool_calls else END

    def after_tools(state: MessagesState) -> str:
        said = [message for message in state["messages"] if isinstance(message, AIMessage)]
        answered = any(call["name"] == "answer" for call in said[-1].tool_calls)
        return END if answered or len(said) >= MAX_TURNS else "model"

    graph = StateGraph(MessagesState)
    graph.add_node("model", call_model).add_node("tools", ToolNode(tools, handle_tool_errors=True))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", after_model, ["tools", END])
    graph.add_conditional_edges("tools", after_tools, ["model", END])
    return graph.compile()
