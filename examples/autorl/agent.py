"""The agent: a single node. It has no code for RL."""

from __future__ import annotations

from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import SystemMessage
from langchain_core.runnables import Runnable
from langgraph.graph import END, START, MessagesState, StateGraph

SYSTEM = """You answer guests of a hotel. Two examples:
Guest: May I leave my bags here? Answer: Certainly, we are happy to keep them for you.
Guest: My window is dirty. Answer: We are sorry, and somebody will clean it at once."""
"""Without examples the embedded model goes on for more than one sentence nearly always."""


def build_graph(model: BaseChatModel) -> Runnable[Any, Any]:
    """A graph of one node, which answers a guest."""

    async def answer(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke([SystemMessage(SYSTEM), *state["messages"]])]}

    graph = StateGraph(MessagesState).add_node("answer", answer)
    return graph.add_edge(START, "answer").add_edge("answer", END).compile()
