"""The task: say when, where and who. Each fact has a reward of its own, for the node that names it."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from art_examples.learning.task import BRIEF_IMITATION, Recipe, Task, chat
from art_examples.temporal_clue.agent import QUESTIONS, SYSTEM, build_graph
from art_examples.temporal_clue.puzzles import ROOMS, Puzzle, make
from langchain_core.messages import AIMessage

from art_langgraph import Conversation, GRPOConfig, NodeRewards, Scenario, Trajectory

TRAINING = ("Ann", "Ben", "Carl", "Dora", "Emma", "Fred", "Gina", "Hugo", "Ida", "Jack", "Kate", "Leo")
HELD_OUT = ("Mary", "Nick", "Olga", "Paul", "Rosa", "Sam", "Tina", "Victor")
RECIPE = Recipe(
    warm_start=BRIEF_IMITATION,
    config=GRPOConfig(lr=3e-4),
    steps=16,
    falling=True,
    groups_per_step=8,
)


@asynccontextmanager
async def temporal_clue(seed: int = 0) -> AsyncIterator[Task]:
    """The task for a seed. Nobody in a held-out puzzle is in training."""
    trained = puzzles(TRAINING, 512, random.Random(f"temporal-clue-{seed}"))
    yield Task(
        name="temporal_clue",
        graph=build_graph,
        training=[scenario(puzzle) for puzzle in trained[256:]],
        held_out=[scenario(puzzle) for puzzle in puzzles(HELD_OUT, 120, random.Random("temporal-clue-held-out"))],
        demonstrations=[demonstration(puzzle) for puzzle in trained[:256]],
        reward=reward,
        success=success,
        max_tokens=8,
        recipe=RECIPE,
    )


def puzzles(names: tuple[str, ...], count: int, rng: random.Random) -> list[Puzzle]:
    """Puzzles about people of these names, all different. In every second one all facts are stated."""
    made: dict[str, Puzzle] = {}
    while len(made) < count:
        puzzle = make(tuple(rng.sample(names, len(ROOMS))), rng, stated=len(made) % 2 == 1)
        made[puzzle.text] = puzzle
    return list(made.values())


def scenario(puzzle: Puzzle) -> Scenario:
    """The scenario of a puzzle."""
    return Scenario(input={"puzzle": puzzle.text}, metadata={name: getattr(puzzle, name) for name in QUESTIONS})


def demonstration(puzzle: Puzzle) -> Conversation:
    """The right answers."""
    first, *others = QUESTIONS.items()
    asked = [(first[0], f"{puzzle.text}\n{first[1]}"), *others]
    return chat(SYSTEM, *(text for name, question in asked for text in (question, getattr(puzzle, name))))


def reward(trajectory: Trajectory) -> NodeRewards:
    """A third for each fact that is right, to the node that names it."""
    answers = [message.text for message in trajectory.messages if isinstance(message, AIMessage)]
    said = dict(zip(QUESTIONS, answers, strict=False))
    wanted = trajectory.scenario.metadata
    return NodeRewards({name: (word(said.get(name, "")) == word(wanted[name])) / 3 for name in QUESTIONS})


def success(trajectory: Trajectory) -> bool:
    """Whether all facts are right."""
    return all(trajectory.metrics[name] > 0 for name in QUESTIONS)


def word(text: str) -> str:
    """An answer without spaces, full stop and capitals."""
    return text.strip().rstrip(".").lower()
