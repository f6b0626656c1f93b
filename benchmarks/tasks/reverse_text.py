"""The task `reverse_text`: write the letters of a text in reverse order.

A text is an invented word, spelled out with spaces: "k a r o n" → "n o r a k". Spelled out, a letter is a token of its
own. SmolLM2-135M does not know which letters most of its whole-word tokens have, so that words as such are out of its
reach.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from difflib import SequenceMatcher

from art_examples.learning.task import Recipe, Task, chat, solved, weighted_parts
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AnyMessage, SystemMessage
from langchain_core.runnables import Runnable
from langgraph.graph import START, MessagesState, StateGraph

from art_langgraph import Conversation, GRPOConfig, Scenario, SFTConfig, Trajectory

SYSTEM = "Write the letters in reverse order."
LENGTHS = (3, 4, 5, 6)
"""Numbers of letters of a word. All of them are equally frequent."""
WEIGHTS = {"letters": 0.2, "similarity": 0.5, "success": 0.3}
RECIPE = Recipe(
    warm_start=SFTConfig(lr=1e-3, num_train_epochs=2, per_device_train_batch_size=8),
    config=GRPOConfig(lr=3e-4),
    steps=24,
    groups_per_step=8,
)
SHOWN, TRAINED = 64, 640
"""Numbers of words that are shown by a demonstration, and of those that GRPO trains on."""


@asynccontextmanager
async def reverse_text(seed: int = 0) -> AsyncIterator[Task]:
    """The task for a seed. No held-out word, nor its reverse, is trained."""
    held_out = words(random.Random("reverse-text-held-out"), 120, set())
    taken = {*held_out, *(word[::-1] for word in held_out)}
    trained = words(random.Random(f"reverse-text-{seed}"), SHOWN + TRAINED, taken)
    shown, training = trained[:SHOWN], trained[SHOWN:]
    yield Task(
        name="reverse_text",
        graph=build_graph,
        training=[scenario(word) for word in training],
        held_out=[scenario(word) for word in held_out],
        demonstrations=[demonstration(word) for word in shown],
        reward=weighted_parts(WEIGHTS, parts),
        success=solved,
        max_tokens=16,
        recipe=RECIPE,
    )


def words(rng: random.Random, count: int, taken: set[str]) -> list[str]:
    """Invented words in which consonants and vowels alternate, of all LENGTHS in turn.

    Args:
        rng: Draws the letters.
        count: Number of words.
        taken: Words that must not come.
    """
    made: dict[str, None] = {}
    while len(made) < count:
        length = LENGTHS[len(made) % len(LENGTHS)]
        first = rng.randrange(2)
        word = "".join(rng.choice("aeiou" if (at + first) % 2 else "bdfgklmnprstvz") for at in range(length))
        if word not in taken and word != word[::-1]:
            made[word] = None
    return list(made)


def scenario(word: str) -> Scenario:
    """The scenario of a word."""
    return Scenario(id=f"reverse-{word}", input=" ".join(word), metadata={"answer": word[::-1]})


def demonstration(word: str) -> Conversation:
    """The right answer for a word."""
    return chat(SYSTEM, " ".join(word), " ".join(reversed(word)))


def build_graph(model: BaseChatModel) -> Runnable[MessagesState, MessagesState]:
    """A graph of one node, which asks the model."""

    async def reverse(state: MessagesState) -> dict[str, list[AnyMessage]]:
        return {"messages": [await model.ainvoke([SystemMessage(SYSTEM), *state["messages"]])]}

    return StateGraph(MessagesState).add_node("reverse", reverse).add_edge(START, "reverse").compile()


def parts(trajectory: Trajectory) -> dict[str, float]:
    """The parts of the reward, each from 0 to 1.

    - letters: The share of letters that word and answer have in common, in any order.
    - similarity: difflib's ratio of the answer and the reversed word, letter by letter; other text counts as letters.
    - success: Whether the answer is the reversed word, spelled out.
    """
    wanted = list(trajectory.scenario.metadata["answer"])
    given = trajectory.final_text.split()
    common = sum((Counter(given) & Counter(wanted)).values())
    return {
        "letters": 2 * common / (len(given) + len(wanted)),
        "similarity": SequenceMatcher(None, given, wanted, autojunk=False).ratio(),
        "success": float(given == wanted),
    }
