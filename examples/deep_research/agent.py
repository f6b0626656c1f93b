"""The agent: planner → searchers, at the same time → writer. It has no code for RL."""

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict

from art_examples.deep_research.corpus import search
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import HumanMessage, SystemMessage
from langchain_core.runnables import Runnable
from langgraph.graph import END, START, StateGraph
from langgraph.types import Send

PLANNER = "Write the searches that the question needs, with semicolons between them."
SEARCHER = "Say what the document says about the search, in a few words."
WRITER = "Write the report from the findings."
MAX_SEARCHES = 4


class Search(TypedDict):
    """What a searcher is given."""

    query: str


class Finding(Search):
    """What a searcher said: the search, the title of the document that it read, and its words."""

    title: str
    text: str


class State(TypedDict, total=False):
    """The question, the searches, what searchers said, and the report."""

    question: str
    queries: list[str]
    findings: Annotated[list[Finding], operator.add]
    report: str


def build_graph(model: BaseChatModel) -> Runnable[Any, Any]:
    """A graph of three nodes. Each search has a run of the node `searcher` (`Send`); without a search it ends."""

    async def planner(state: State) -> dict[str, Any]:
        said = await _ask(model, PLANNER, state["question"])
        return {"queries": [query.strip() for query in said.split(";") if query.strip()][:MAX_SEARCHES]}

    async def searcher(given: Search) -> dict[str, Any]:
        query = given["query"]
        text = await _ask(model, SEARCHER, to_searcher(query))
        return {"findings": [Finding(query=query, title=search(query).title, text=text)]}

    async def writer(state: State) -> dict[str, Any]:
        return {"report": await _ask(model, WRITER, to_writer(state["findings"]))}

    def searches(state: State) -> list[Send] | str:
        return [Send("searcher", {"query": query}) for query in state["queries"]] or END

    graph = StateGraph(State).add_node("planner", planner).add_node("searcher", searcher).add_node("writer", writer)
    graph.add_edge(START, "planner").add_edge("searcher", "writer").add_edge("writer", END)
    graph.add_conditional_edges("planner", searches, ["searcher", END])
    return graph.compile()


def to_searcher(query: str) -> str:
    """What a searcher sees: the search, and the document that was found."""
    return f"{query}\n{search(query)}"


def to_writer(findings: list[Finding]) -> str:
    """What the writer sees: the searches with what searchers said."""
    return "\n".join(f"{finding['query']}: {finding['text']}" for finding in findings)


async def _ask(model: BaseChatModel, system: str, text: str) -> str:
    answer = await model.ainvoke([SystemMessage(system), HumanMessage(text)])
    return answer.text.strip().rstrip(".")
