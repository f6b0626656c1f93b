"""The agent: a graph of two nodes, in one long conversation. It has no code for RL."""

from __future__ import annotations

import random
from typing import Any

from art_examples.game_2048.board import MOVES, Rows, first, possible, show, slide, with_new_tile
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AnyMessage, HumanMessage, SystemMessage
from langchain_core.runnables import Runnable
from langgraph.graph import END, START, MessagesState, StateGraph

SYSTEM = "Merge equal numbers. Answer with one of the moves in the last line."
MAX_MOVES = 24
TARGET = 32
"""The tile that a game is won with."""


class State(MessagesState, total=False):
    """Messages, the seed of the tiles, the board, the points, the number of legal moves, and whether the game is over.

    An input needs a seed alone.
    """

    seed: str
    rows: Rows
    points: int
    moves: int
    over: bool


def build_graph(model: BaseChatModel) -> Runnable[Any, Any]:
    """A graph that plays a game: the node `move` asks the policy, the node `board` moves the tiles.

    A game ends with the tile TARGET, after MAX_MOVES, where no move is possible, or with an answer that is none.
    """

    def begin(state: State) -> State:
        rows = first(state["seed"])
        return {"rows": rows, "points": 0, "moves": 0, "over": False, "messages": [HumanMessage(show(rows))]}

    async def move(state: State) -> State:
        return {"messages": [await model.ainvoke([SystemMessage(SYSTEM), *state["messages"]])]}

    def board(state: State) -> State:
        chosen = move_of(state["messages"][-1])
        if chosen not in possible(state["rows"]):
            return {"over": True}
        (slid, points), moves = slide(state["rows"], chosen), state["moves"] + 1
        rows = with_new_tile(slid, random.Random(f"{state['seed']}/{moves}/{slid}"))
        over = max(map(max, rows)) >= TARGET or moves >= MAX_MOVES or not possible(rows)
        shown: list[AnyMessage] = [] if over else [HumanMessage(show(rows))]
        return {"rows": rows, "points": state["points"] + points, "moves": moves, "over": over, "messages": shown}

    graph = StateGraph(State).add_node("begin", begin).add_node("move", move).add_node("board", board)
    graph.add_edge(START, "begin").add_edge("begin", "move").add_edge("move", "board")
    graph.add_conditional_edges("board", lambda state: END if state["over"] else "move", ["move", END])
    return graph.compile().with_config(recursion_limit=2 * MAX_MOVES + 5)


def move_of(message: AnyMessage) -> str:
    """The move of an answer: one of MOVES, or an empty text."""
    word = message.text.strip().rstrip(".").lower()
    return word if word in MOVES else ""
