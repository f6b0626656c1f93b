"""Graphs that several tests run."""

from __future__ import annotations

from typing import Any

from langchain_core.runnables import Runnable
from langgraph.graph import START, MessagesState, StateGraph

from art_langgraph import ChatART


def counting(policy: str = "agent", **options: Any) -> Runnable[Any, Any]:
    """A graph that says another number each time it runs. options: of ChatART."""
    model, told = ChatART(policy=policy, max_tokens=50, **options), iter(range(100))

    async def node(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke([("user", f"say {next(told)}")])]}

    return StateGraph(MessagesState).add_node("model", node).add_edge(START, "model").compile()
