"""Messages of a shop's customers, and the desk that each is for."""

from __future__ import annotations

import random
from collections.abc import Sequence

from art_examples.learning.task import chat

from art_langgraph import Conversation, Scenario, Trajectory

SYSTEM = "Say which desk the message is for: billing, shipping, returns or repairs. Answer with that word alone."
"""The system message of the app, for the demonstrations."""
THINGS = ("lamp", "chair", "kettle", "radio", "clock", "bicycle", "tent", "mirror", "ladder", "carpet", "camera")
HELD_OUT_THINGS = ("guitar", "oven", "sofa", "drill", "scooter", "printer", "mixer", "watch", "helmet", "bag", "saw")
DESKS = {
    "billing": (
        "I was charged twice for the {}.",
        "The invoice for the {} has the wrong sum.",
        "Why did the {} cost more than you said?",
        "Please send me a receipt for the {}.",
        "My card was charged, but I never ordered a {}.",
    ),
    "shipping": (
        "When does my {} arrive?",
        "The parcel with the {} is late.",
        "Can you deliver the {} to another address?",
        "The courier says that he has no {}.",
        "Has the {} been sent yet?",
    ),
    "returns": (
        "I want to send the {} back.",
        "I do not like the {}. How do I give it back?",
        "The {} is the wrong colour. I want my money back.",
        "I changed my mind about the {}.",
        "Can I exchange the {} for another one?",
    ),
    "repairs": (
        "My {} is broken.",
        "The {} stopped working today.",
        "Can somebody mend my {}?",
        "The {} makes a strange noise.",
        "A part of the {} came off. Can you fix it?",
    ),
}
"""What customers write, by desk. The last wording of each is held out."""


def training() -> list[tuple[str, str]]:
    """Messages and their desks."""
    return _messages(THINGS, slice(-1))


def demonstrations(count: int, seed: int) -> list[Conversation]:
    """Training messages with the right answers, of all desks in turn.

    Args:
        count: How many.
        seed: Chooses them.
    """
    return [chat(SYSTEM, *shown) for shown in drawn(count, random.Random(f"langgraph-dev-shown-{seed}"))]


def drawn(count: int, rng: random.Random) -> list[tuple[str, str]]:
    """Training messages and their desks, of all desks in turn, so that no desk is named more often than others."""
    by_desk = [rng.sample([message for message in training() if message[1] == desk], count) for desk in DESKS]
    return [message for alike in zip(*by_desk, strict=True) for message in alike][:count]


def held_out() -> list[tuple[str, str]]:
    """Messages about things that are in no training message, half of them in a wording of their own; shuffled."""
    made = _messages(HELD_OUT_THINGS, slice(0, None, 4))
    return random.Random("langgraph-dev").sample(made, len(made))


def scenarios(shown: Sequence[dict[str, str]] = ()) -> list[Scenario]:
    """The held-out messages as scenarios. shown: messages before that of the user."""
    return [
        Scenario(input={"messages": [*shown, {"role": "user", "content": message}]}, metadata={"desk": desk})
        for message, desk in held_out()
    ]


def grade(answer: str, desk: str) -> float:
    """How right an answer is: 1 for the desk and nothing else, 0.3 for another desk, else 0."""
    said = answer.strip().rstrip(".").lower()
    return 1.0 if said == desk else 0.3 * (said in DESKS)


def reward(trajectory: Trajectory) -> float:
    """How right the answer of a run is."""
    return grade(trajectory.final_text, trajectory.scenario.metadata["desk"])


def _messages(things: tuple[str, ...], wordings: slice) -> list[tuple[str, str]]:
    return [(text.format(thing), desk) for desk, texts in DESKS.items() for text in texts[wordings] for thing in things]
