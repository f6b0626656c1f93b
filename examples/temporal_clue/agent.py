"""The agent: a graph of three nodes, each of which answers a question about the puzzle. It has no code for RL."""

from __future__ import annotations

from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import HumanMessage, SystemMessage
from langchain_core.runnables import Runnable
from langgraph.graph import START, MessagesState, StateGraph

SYSTEM = "Solve the puzzle. Answer with one word."
QUESTIONS = {"when": "When was the crime?", "where": "Where was it?", "who": "Who was there?"}
"""Questions by the names of the nodes that answer them, in their order."""


class State(MessagesState, total=False):
    """Messages, and the puzzle in words."""

    puzzle: str


def build_graph(model: BaseChatModel) -> Runnable[Any, Any]:
    """A graph that answers when, where and who, in one conversation."""

    def node(name: str) -> Any:
        async def ask(state: State) -> State:
            said = state.get("messages", [])
            text = QUESTIONS[name] if said else f"{state['puzzle']}\n{QUESTIONS[name]}"
            asked = HumanMessage(text)
            return {"messages": [asked, await model.ainvoke([SystemMessage(SYSTEM), *said, asked])]}

        return ask

    graph, before = StateGraph(State), START
    for name in QUESTIONS:
        graph.add_node(name, node(name)).add_edge(before, name)
        before = name
    return graph.compile()
