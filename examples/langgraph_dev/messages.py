"""Messages of a shop's customers, and the desk that each is for."""

from __future__ import annotations

import random

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


def held_out() -> list[tuple[str, str]]:
    """Messages about things that are in no training message, half of them in a wording of their own; shuffled."""
    made = _messages(HELD_OUT_THINGS, slice(0, None, 4))
    return random.Random("langgraph-dev").sample(made, len(made))


def _messages(things: tuple[str, ...], wordings: slice) -> list[tuple[str, str]]:
    return [(text.format(thing), desk) for desk, texts in DESKS.items() for text in texts[wordings] for thing in things]
