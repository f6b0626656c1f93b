"""What guests of a hotel write: material of the model that stands in for a writer, and messages to measure on."""

from __future__ import annotations

from itertools import product

WISHES = ("Could I have {} in my room?", "Where do I find {}?", "I would like to order {}.", "There is no {} here!",
          "How much do you charge for {}?", "Somebody took {} from my room.")  # fmt: skip
THINGS = ("a towel", "an iron", "a lamp", "the key", "breakfast", "a taxi", "the wifi code", "an umbrella", "a blanket")
HELD_OUT_WISHES = ("Please bring me {}.", "Is {} included?", "I am still waiting for {}.", "Can you tell me about {}?")
HELD_OUT_THINGS = ("the pool", "dinner", "a pillow", "the bill", "a map", "the sauna", "a bottle of water", "the bus",
                   "a hair dryer", "the gym", "a cot", "the garden")  # fmt: skip


def invented() -> list[str]:
    """Messages for training."""
    return [wish.format(thing) for wish, thing in product(WISHES, THINGS)]


def held_out() -> list[str]:
    """Messages that are measured on. Neither their things nor their wordings are in those for training."""
    return [wish.format(thing) for thing, wish in product(HELD_OUT_THINGS, HELD_OUT_WISHES)]
