"""Graphs that call MCP servers without any model."""

from __future__ import annotations

from typing import Any

from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph

from art_mcp import Server


def calling(server: Server, *calls: tuple[str, dict[str, Any]], answer: str | None = None) -> Any:
    """A graph that makes calls, one after another, and says an answer; None: what the last call gave."""

    async def call(state: MessagesState) -> dict[str, list[AIMessage]]:
        results = [await server.call(tool, arguments) for tool, arguments in calls]
        return {"messages": [AIMessage(results[-1].text if answer is None else answer)]}

    return StateGraph(MessagesState).add_node("call", call).add_edge(START, "call").compile()
