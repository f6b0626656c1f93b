"""The game: a graph of two nodes, each of which asks a policy of its own. It has no code for RL."""

from __future__ import annotations

from typing import Any, TypedDict

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import HumanMessage, SystemMessage
from langchain_core.runnables import Runnable
from langgraph.graph import END, START, StateGraph

SPYMASTER = "Give one word that is a clue for our words, and for no other word."
GUESSER = "Name the two words that the clue is for."


class State(TypedDict, total=False):
    """Our words, all words on the table, the clue, and the guess."""

    ours: list[str]
    table: list[str]
    clue: str
    guess: list[str]


def build_graph(spymaster: BaseChatModel, guesser: BaseChatModel) -> Runnable[Any, Any]:
    """A graph that plays a round. The guesser does not see which words are ours; a clue that is not allowed ends it."""

    async def give_clue(state: State) -> State:
        return {"clue": await _ask(spymaster, SPYMASTER, table_of_spymaster(state["ours"], state["table"]))}

    async def guess(state: State) -> State:
        said = await _ask(guesser, GUESSER, table_of_guesser(state["clue"], state["table"]))
        return {"guess": [word.strip() for word in said.split(",")]}

    graph = StateGraph(State).add_node("spymaster", give_clue).add_node("guesser", guess)
    graph.add_edge(START, "spymaster").add_edge("guesser", END)
    graph.add_conditional_edges(
        "spymaster", lambda state: "guesser" if allowed(state["clue"], state["table"]) else END, ["guesser", END]
    )
    return graph.compile()


def table_of_spymaster(ours: list[str], table: list[str]) -> str:
    """What the spymaster sees."""
    return f"our words: {', '.join(ours)}\nother words: {', '.join(word for word in table if word not in ours)}"


def table_of_guesser(clue: str, table: list[str]) -> str:
    """What the guesser sees."""
    return f"clue: {clue}\nwords: {', '.join(table)}"


def allowed(clue: str, table: list[str]) -> bool:
    """Whether a clue is one word that neither is on the table nor is a part of a word there."""
    return clue.isalpha() and not any(clue in word or word in clue for word in table)


async def _ask(model: BaseChatModel, system: str, text: str) -> str:
    answer = await model.ainvoke([SystemMessage(system), HumanMessage(text)])
    return answer.text.strip().rstrip(".").lower()
