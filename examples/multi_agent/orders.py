"""Orders of an invented shop, and questions about them. Each worker knows one fact of an order."""

from __future__ import annotations

import random
from dataclasses import dataclass

CITIES = ("Oslo", "Rome", "Cairo", "Lima", "Delhi", "Paris", "Berlin", "Tokyo", "Lagos", "Madrid")
GOODS = ("a lamp", "a chair", "two books", "a radio", "a bicycle", "six cups", "a tent", "a clock", "a kettle")
WORKERS = ("shipping", "billing", "packing")
"""Names of the workers. The first knows where an order is, the second what it cost, the third what is in it."""
ASKED = {
    "shipping": ("where is it", "in which city is it", "what place has it reached"),
    "billing": ("what did it cost", "how much was paid for it", "what was the price"),
    "packing": ("what is in it", "which things are in it", "what did I order"),
}
HELD_OUT_ASKED = {
    "shipping": ("in what town is it now", "where has it got to"),
    "billing": ("how much did I pay", "how many euros did it cost"),
    "packing": ("what does it contain", "what is in the parcel"),
}
"""Wordings that are not trained."""


@dataclass(frozen=True, slots=True)
class Order:
    """An order, and what somebody asks about it.

    Args:
        number: Number of the order.
        facts: What each worker knows of it.
        wanted: The workers who know what is asked, in the order of the question.
        question: The question.
    """

    number: int
    facts: dict[str, str]
    wanted: tuple[str, ...]
    question: str


def draw(rng: random.Random, *, held_out: bool) -> Order:
    """An order with a question about one or two facts.

    Args:
        rng: Draws it.
        held_out: Whether number and wording are held out.
    """
    number = rng.randrange(500, 1000) if held_out else rng.randrange(100, 500)
    facts = dict(zip(WORKERS, (rng.choice(CITIES), f"{rng.randrange(11, 99)} euros", rng.choice(GOODS)), strict=True))
    wanted = tuple(rng.sample(WORKERS, rng.choice((1, 2))))
    wordings = HELD_OUT_ASKED if held_out else ASKED
    asked = " and ".join(rng.choice(wordings[worker]) for worker in wanted)
    return Order(number, facts, wanted, f"Order {number}: {asked}?")
