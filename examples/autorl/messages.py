"""What guests of a hotel write: material of the model that stands in for a writer, and messages to measure on."""

from __future__ import annotations

from itertools import product

from art_examples.autorl.agent import SYSTEM
from art_examples.learning.task import chat

from art_langgraph import Conversation, Scenario

WISHES = ("Could I have {} in my room?", "Where do I find {}?", "I would like to order {}.", "There is no {} here!",
          "How much do you charge for {}?", "Somebody took {} from my room.")  # fmt: skip
THINGS = ("a towel", "an iron", "a lamp", "the key", "breakfast", "a taxi", "the wifi code", "an umbrella", "a blanket")
HELD_OUT_WISHES = ("Please bring me {}.", "Is {} included?", "I am still waiting for {}.", "Can you tell me about {}?")
HELD_OUT_THINGS = ("the pool", "dinner", "a pillow", "the bill", "a map", "the sauna", "a bottle of water", "the bus",
                   "a hair dryer", "the gym", "a cot", "the garden")  # fmt: skip

SHOWN = {
    "Could I have a fan in my room?": "Certainly, a fan will be in your room in ten minutes.",
    "Where do I find the lift?": "The lift is behind the reception, and you are welcome to use it.",
    "There is no soap here!": "We are sorry, and somebody will bring you soap at once.",
    "How much do you charge for parking?": "Parking is free for our guests, and we are happy to show you the way.",
}
"""Messages, which no measurement has, and right answers."""


def demonstrations() -> list[Conversation]:
    """Right answers for the prompted baseline. No policy imitates them."""
    return [chat(SYSTEM, message, answer) for message, answer in SHOWN.items()]


def scenarios() -> list[Scenario]:
    """The held-out messages as scenarios."""
    return [Scenario(input=message) for message in held_out()]


def invented() -> list[str]:
    """Messages for training."""
    return [wish.format(thing) for wish, thing in product(WISHES, THINGS)]


def held_out() -> list[str]:
    """Messages that are measured on. Neither their things nor their wordings are in those for training."""
    return [wish.format(thing) for thing, wish in product(HELD_OUT_THINGS, HELD_OUT_WISHES)]
