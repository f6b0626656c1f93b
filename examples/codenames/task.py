"""The task: that the guesser names the two words that the spymaster means."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from art_examples.codenames.agent import (
    GUESSER,
    SPYMASTER,
    allowed,
    build_graph,
    table_of_guesser,
    table_of_spymaster,
)
from art_examples.codenames.words import CATEGORIES, words
from art_examples.learning.task import BRIEF_IMITATION, Recipe, Task, chat

from art_langgraph import Conversation, GRPOConfig, NodeRewards, Scenario, Trajectory

OTHERS = 4
"""Number of words on the table that are not ours."""
RECIPE = Recipe(
    warm_start=BRIEF_IMITATION,
    config=GRPOConfig(lr=3e-4),
    steps=24,
    falling=True,
    groups_per_step=8,
)


@asynccontextmanager
async def codenames(seed: int = 0) -> AsyncIterator[Task]:
    """The task for a seed. No word of a held-out table is in training."""
    rng, held_out = random.Random(f"codenames-{seed}"), random.Random("codenames-held-out")
    yield Task(
        name="codenames",
        graph=build_graph,
        training=[scenario(*draw(rng, held_out=False)[1:]) for _ in range(240)],
        held_out=[scenario(*draw(held_out, held_out=True)[1:]) for _ in range(120)],
        demonstrations=[shown for _ in range(160) for shown in demonstrations(*draw(rng, held_out=False))],
        reward=reward,
        success=success,
        max_tokens=12,
        recipe=RECIPE,
        roles={"spymaster": SPYMASTER, "guesser": GUESSER},
    )


def draw(rng: random.Random, *, held_out: bool) -> tuple[str, list[str], list[str]]:
    """A category, two of its words, and a table with these and words of other categories.

    Args:
        rng: Draws them.
        held_out: Whether the words are held out.
    """
    category, *others = rng.sample(list(CATEGORIES), 1 + OTHERS)
    ours = rng.sample(words(category, held_out), 2)
    table = [*ours, *(rng.choice(words(other, held_out)) for other in others)]
    return category, ours, rng.sample(table, len(table))


def scenario(ours: list[str], table: list[str]) -> Scenario:
    """The scenario of a table."""
    return Scenario(id=f"table-{'-'.join([*ours, *table])}", input={"ours": ours, "table": table})


def demonstrations(category: str, ours: list[str], table: list[str]) -> list[Conversation]:
    """What the spymaster says, and what the guesser says: the name of the category, and the words in their order."""
    return [
        chat(SPYMASTER, table_of_spymaster(ours, table), category),
        chat(GUESSER, table_of_guesser(category, table), ", ".join(word for word in table if word in ours)),
    ]


def reward(trajectory: Trajectory) -> NodeRewards:
    """Rewards of both nodes, each from 0 to 0.5.

    The spymaster gets 0.1 for a clue that is allowed, and the guesser 0.1 for a guess of two different words of the
    table. Each of them gets 0.2 for each of our words in such a guess.
    """
    state = trajectory.output
    ours, table, guess = state["ours"], state["table"], state.get("guess", [])
    legal = len(set(guess)) == len(guess) == len(ours) and set(guess) <= set(table)
    found = 0.2 * len(set(guess) & set(ours)) if legal else 0.0
    clue = 0.1 * allowed(state["clue"], table)
    return NodeRewards(spymaster=clue + found, guesser=0.1 * legal + found)


def success(trajectory: Trajectory) -> bool:
    """Whether the guess has just our words."""
    return sorted(trajectory.output.get("guess", [])) == sorted(trajectory.output["ours"])
