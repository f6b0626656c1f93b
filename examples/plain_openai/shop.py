"""A shop: what each thing costs, how many there are, where they lie; tools that tell it, and questions."""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass
from typing import Literal


def _listed(words: str) -> list[str]:
    return words.split()


THINGS = _listed(
    "lamp chair table kettle radio clock basket mirror carpet ladder bucket hammer candle pillow blanket vase bottle "
    "bicycle tent rope ball flute whistle helmet"
)
HELD_OUT_THINGS = _listed(
    "drum stool shovel kite lantern saddle trunk piano guitar pencil ruler jacket button needle hook chain rake spoon "
    "plate cup jar bowl oven stove sofa desk lock key bell wheel boat sail"
)
"""Things that no training question is about."""
VALIDATION_THINGS = _listed("comb towel rug bench coin ladle brush vest")
"""Things of the questions by which the best version is chosen."""

QUESTIONS = {
    "price": (
        "What does a {} cost?",
        "What is the price of a {}?",
        "How much is one {}?",
        "What do you charge for a {}?",
        "Tell me the price of the {}.",
        "How many euros is a {}?",
        "I want to buy a {}. How much is it?",
        "At what price do you sell the {}?",
        "Is the {} cheap? Name the price.",
        "What would I pay for one {}?",
        "Give me the cost of a {}, please.",
        "How much money do I need for a {}?",
        "What is a {} worth?",
        "How expensive is a {}?",
    ),
    "stock": (
        "How many {}s are there?",
        "How many {}s are in stock?",
        "How many {}s are left?",
        "What is the stock of {}s?",
        "Tell me the number of {}s.",
        "Do you still have {}s, and how many?",
        "I need {}s. How many have you got?",
        "What number of {}s remains?",
        "Are there enough {}s? Say how many.",
        "How large is the supply of {}s?",
        "Give me the quantity of {}s, please.",
        "How many {}s can I get?",
        "How many pieces of the {} do you keep?",
        "Count the {}s.",
    ),
    "shelf": (
        "Where is the {}?",
        "On which shelf is the {}?",
        "Where do I find a {}?",
        "Where does the {} lie?",
        "Tell me the shelf of the {}.",
        "Where have you put the {}?",
        "I am looking for a {}. Where is it?",
        "At what place do you keep the {}?",
        "Is the {} near? Name its shelf.",
        "What shelf holds the {}?",
        "Give me the location of the {}, please.",
        "Where can I pick up a {}?",
        "In which corner is the {}?",
        "Which place has the {}?",
    ),
}
"""Questions, by the tool that answers them. The last wording of each is held out, and the last but one is for
validation: by these questions the best version is chosen."""
Part = Literal["training", "validation", "held_out"]
"""What a question is for."""
DESCRIPTIONS = {
    "price": "Price of a thing.",
    "stock": "How many there are of a thing.",
    "shelf": "Where a thing lies.",
}
"""The tools, each of which takes a `thing`, and what they do."""


@dataclass(frozen=True, slots=True)
class Question:
    """A question, the thing that it is about, and the tool that answers it."""

    text: str
    thing: str
    tool: str

    @property
    def value(self) -> str:
        """What the tool says."""
        return look_up(self.tool, self.thing)


def look_up(tool: str, thing: str) -> str:
    """What a tool says of a thing. The value follows from the name, so that nobody can know it without the tool.

    Args:
        tool: A key of DESCRIPTIONS.
        thing: Name of the thing. A name that the shop does not have gets an answer that says so.
    """
    if thing not in (*THINGS, *VALIDATION_THINGS, *HELD_OUT_THINGS):
        return f"there is no {thing}"
    number = int.from_bytes(hashlib.sha256(f"{tool} of {thing}".encode()).digest()[:4], "big")
    return {
        "price": f"{number % 89 + 11} euros",
        "stock": f"{number % 89 + 11} pieces",
        "shelf": f"shelf {'ABCDEFGH'[number % 8]}{number // 8 % 89 + 11}",
    }[tool]


def questions(part: Part) -> list[Question]:
    """All questions for something. Each part has things and wordings of its own."""
    things = {"training": THINGS, "validation": VALIDATION_THINGS, "held_out": HELD_OUT_THINGS}[part]
    chosen = {"training": slice(-2), "validation": slice(-2, -1), "held_out": slice(-1, None)}[part]
    return [
        Question(wording.format(thing), thing, tool)
        for tool, wordings in QUESTIONS.items()
        for thing in things
        for wording in wordings[chosen]
    ]


def shuffled(seed: int) -> list[Question]:
    """The training questions in an order that the seed chooses."""
    return random.Random(f"shop-{seed}").sample(questions("training"), len(questions("training")))
