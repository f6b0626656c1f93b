"""The task: win games of tic-tac-toe."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from art_examples.learning.task import BRIEF_IMITATION, Recipe, Task, chat, solved, weighted_parts
from art_examples.tic_tac_toe.agent import SYSTEM, build_graph
from art_examples.tic_tac_toe.board import EMPTY, ended, free, place, show

from art_langgraph import Conversation, GRPOConfig, Scenario, Trajectory

WEIGHTS = {"legal": 0.2, "score": 0.4, "success": 0.4}
RECIPE = Recipe(
    warm_start=BRIEF_IMITATION,
    config=GRPOConfig(lr=4e-4),
    steps=24,
    falling=True,
    groups_per_step=12,
)


@asynccontextmanager
async def tic_tac_toe(seed: int = 0) -> AsyncIterator[Task]:
    """Against the fixed opponent, which draws its moves in held-out games by other seeds than in training."""
    rng = random.Random(f"tic-tac-toe-{seed}")
    yield Task(
        name="tic_tac_toe",
        graph=build_graph,
        training=[scenario(f"{seed}-{at}", at) for at in range(240)],
        held_out=[scenario(f"held-out-{at}", at) for at in range(120)],
        demonstrations=[demonstration(rng) for _ in range(160)],
        reward=weighted_parts(WEIGHTS, parts),
        success=solved,
        max_tokens=4,
        recipe=RECIPE,
    )


@asynccontextmanager
async def self_play(seed: int = 0) -> AsyncIterator[Task]:
    """Trained against an earlier version of the policy. It is measured against the fixed opponent all the same."""
    async with tic_tac_toe(seed) as task:
        yield replace(task, name="self_play", self_play=build_graph, nodes=("play",))


def scenario(seed: str, at: int) -> Scenario:
    """A game. In every second one the opponent has begun, on the squares in turn.

    Args:
        seed: Seed of the opponent.
        at: Number of the game.
    """
    board = place(EMPTY, EMPTY[at // 2 % 9], "O") if at % 2 else EMPTY
    return Scenario(id=f"game-{seed}", input={"board": board, "seed": seed})


def demonstration(rng: random.Random) -> Conversation:
    """A legal move, made by chance. It shows how to answer, and not how to win."""
    while True:
        board, moves = EMPTY, rng.randrange(8)
        for left in range(moves, 0, -1):  # the last of them is the opponent's
            board = place(board, rng.choice(free(board)), "XO"[left % 2])
        if not ended(board):
            return chat(SYSTEM, show(board), rng.choice(free(board)))


def parts(trajectory: Trajectory) -> dict[str, float]:
    """The parts of the reward, each from 0 to 1.

    - legal: The share of legal moves among the agent's moves. An illegal one ends the game.
    - score: 1 for a game that was won, 0.5 for a draw.
    - success: Whether the game was won.
    """
    state = trajectory.output
    moves, how = state.get("moves", 0), state["ended"]
    return {
        "legal": moves / (moves + (how == "illegal")),
        "score": {"won": 1.0, "draw": 0.5}.get(how, 0.0),
        "success": float(how == "won"),
    }
