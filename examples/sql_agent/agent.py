"""The agent: a graph of three nodes, write → check → rewrite. It has no code for RL."""

from __future__ import annotations

import re
import sqlite3
from typing import Any

from art_examples.sql_agent.databases import Row, execute
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, SystemMessage
from langchain_core.runnables import Runnable
from langgraph.graph import END, START, MessagesState, StateGraph

SYSTEM = "Write one SQLite query that answers the question."
MAX_REWRITES = 1
_FENCE = re.compile(r"```(?:sql\w*)?\s*(.*?)(?:```|$)", re.DOTALL)
"""Larger models than the embedded one write their query into a code fence, with words around it."""


class State(MessagesState, total=False):
    """Messages, the database, and what the last query did: its rows, or why it has to be rewritten."""

    database: str
    rows: list[Row]
    problem: str


def build_graph(model: BaseChatModel) -> Runnable[State, State]:
    """A graph of three nodes: write, check, rewrite."""

    async def ask(state: State) -> State:
        return {"messages": [await model.ainvoke([SystemMessage(SYSTEM), *state["messages"]])]}

    def check_query(state: State) -> dict[str, Any]:
        rows, problem = check(state["database"], query_of(state["messages"][-1]))
        return {"rows": rows, "problem": problem}

    async def rewrite(state: State) -> State:
        problem = HumanMessage(state["problem"])
        answer = await model.ainvoke([SystemMessage(SYSTEM), *state["messages"], problem])
        return {"messages": [problem, answer]}

    def after_check(state: State) -> str:
        written = sum(isinstance(message, AIMessage) for message in state["messages"])
        return "rewrite" if state["problem"] and written <= MAX_REWRITES else END

    graph = StateGraph(State).add_node("write", ask).add_node("check", check_query).add_node("rewrite", rewrite)
    graph.add_edge(START, "write").add_edge("write", "check").add_edge("rewrite", "check")
    graph.add_conditional_edges("check", after_check, ["rewrite", END])
    return graph.compile()


def check(database: str, query: str) -> tuple[list[Row], str]:
    """The rows of a query, and the request to rewrite it if it has none or is wrong, else an empty text."""
    try:
        found = execute(database, query)
    except (sqlite3.Error, sqlite3.Warning, ValueError) as error:  # ValueError: a null character
        return [], f"{str(error)[:80]}. Write it again."
    return found, "" if found else "It gives no rows. Write it again."


def query_of(message: AnyMessage) -> str:
    """The query of an answer: what stands in its first code fence, which may be cut off, or all of it."""
    text = str(message.content)
    fenced = _FENCE.search(text)
    return (fenced[1] if fenced else text).strip()
