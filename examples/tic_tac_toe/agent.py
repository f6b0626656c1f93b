"""The agent: a graph of two nodes, which move in turn. It has no code for RL."""

from __future__ import annotations

from typing import Any, TypedDict

from art_examples.tic_tac_toe.board import ended, free, place, reply, show, swapped
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import HumanMessage, SystemMessage
from langchain_core.runnables import Runnable
from langgraph.graph import END, START, StateGraph

SYSTEM = "You play X. Answer with the number of a free square."
ILLEGAL = "illegal"
"""How a game ended in which the agent did not name a free square."""


class State(TypedDict, total=False):
    """The board, the seed of the fixed opponent, the number of legal moves of the agent, and how the game ended."""

    board: str
    seed: str
    moves: int
    ended: str


def build_graph(model: BaseChatModel, opponent: BaseChatModel | None = None) -> Runnable[Any, Any]:
    """A graph that plays a game. The agent plays X.

    Args:
        model: Plays X.
        opponent: Plays O. It sees the board with X and O swapped, so that it can be the same policy. If it names no
            free square, the fixed opponent moves for it. None: the fixed opponent plays O.
    """

    async def play(state: State) -> State:
        square = await _ask(model, state["board"])
        if square not in free(state["board"]):
            return {"ended": ILLEGAL}
        board = place(state["board"], square, "X")
        return {"board": board, "moves": state.get("moves", 0) + 1, "ended": ended(board)}

    async def answer(state: State) -> State:
        square = reply(state["board"], state["seed"])
        if opponent is not None and (said := await _ask(opponent, swapped(state["board"]))) in free(state["board"]):
            square = said
        board = place(state["board"], square, "O")
        return {"board": board, "ended": ended(board)}

    def after(other: str) -> Any:
        return lambda state: END if state["ended"] else other

    graph = StateGraph(State).add_node("play", play).add_node("opponent", answer).add_edge(START, "play")
    graph.add_conditional_edges("play", after("opponent"), ["opponent", END])
    graph.add_conditional_edges("opponent", after("play"), ["play", END])
    return graph.compile()


async def _ask(model: BaseChatModel, board: str) -> str:
    answer = await model.ainvoke([SystemMessage(SYSTEM), HumanMessage(show(board))])
    return answer.text.strip().rstrip(".")
