"""The task: make the tile TARGET within MAX_MOVES moves."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from art_examples.game_2048.agent import MAX_MOVES, SYSTEM, TARGET, build_graph
from art_examples.game_2048.board import Rows, first, possible, show, slide, with_new_tile
from art_examples.learning.task import BRIEF_IMITATION, Recipe, Task, chat, solved, weighted_parts

from art_langgraph import Conversation, GRPOConfig, Scenario, Trajectory

WEIGHTS = {"moves": 0.2, "points": 0.4, "success": 0.4}
FULL_POINTS = 5 * TARGET
"""Points that are worth the whole part of the reward."""
SHOWN_MOVES = 8
WARM_START = BRIEF_IMITATION.model_copy(update={"per_device_train_batch_size": 8})
RECIPE = Recipe(warm_start=WARM_START, config=GRPOConfig(lr=3e-4), steps=8, falling=True, n=6)


@asynccontextmanager
async def game_2048(seed: int = 0) -> AsyncIterator[Task]:
    """The task for a seed. Held-out games have boards and tiles by other seeds than in training."""
    yield Task(
        name="game_2048",
        graph=build_graph,
        training=[scenario(f"{seed}-{at}") for at in range(120)],
        held_out=[scenario(f"held-out-{at}") for at in range(96)],
        demonstrations=[demonstration(f"{seed}-shown-{at}") for at in range(64)],
        reward=weighted_parts(WEIGHTS, parts),
        success=solved,
        max_tokens=4,
        recipe=RECIPE,
        shots=2,
    )


def scenario(seed: str) -> Scenario:
    """A game. seed: of its tiles."""
    return Scenario(id=f"2048-{seed}", input={"seed": seed})


def demonstration(seed: str) -> Conversation:
    """The first moves of a game, by the rule `good`."""
    rng, rows, said = random.Random(seed), first(seed), list[str]()
    for _ in range(SHOWN_MOVES):
        said += [show(rows), good(rows)]
        rows = with_new_tile(slide(rows, said[-1])[0], rng)
    return chat(SYSTEM, *said)


def good(rows: Rows) -> str:
    """The move with the most points, or of several the one with the largest tile in the first corner."""
    return max(possible(rows), key=lambda move: (slide(rows, move)[1], slide(rows, move)[0][0][0]))


def parts(trajectory: Trajectory) -> dict[str, float]:
    """The parts of the reward, each from 0 to 1.

    - moves: How many of MAX_MOVES the game took. A game that is won early has all of them.
    - points: The sum of the tiles that were made by merging, up to FULL_POINTS.
    - success: Whether the tile TARGET was made.
    """
    state = trajectory.output
    won = max(map(max, state["rows"])) >= TARGET
    return {
        "moves": 1.0 if won else state["moves"] / MAX_MOVES,
        "points": 1.0 if won else min(1.0, state["points"] / FULL_POINTS),
        "success": float(won),
    }
