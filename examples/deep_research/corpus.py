"""A corpus about invented islands that is made by script, a search in it, and questions about it."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache


def _listed(words: str) -> list[str]:
    return words.split()


SYLLABLES = _listed("kor mis ten bal dru fen gol hav ira jun lem nor pel quo ras sul tav ulm ver wex yor zan")
ENDINGS = _listed("vala trel mera dona")
HELD_OUT_ENDINGS = _listed("bury ska")
"""Islands whose names end in these are in no training question."""
GOODS = _listed("copper wheat salt wool tea silk coal timber amber pearls rice oil cotton honey wine glass paper iron")
PEOPLE = [f"{first} {last}" for first in _listed("Oda Ivo Mara Tilo Runa Sven Asta Bela") for last in _listed(
    "Brun Falk Lind Moll Rask Stern Thal Vogt")]  # fmt: skip
TOWNS = [f"{first}{last}" for first in _listed("Tol Ber Har Lun Mor Sal Win") for last in _listed(
    "ford stad mouth gate hill")]  # fmt: skip
KINDS = {"exports": GOODS, "imports": GOODS, "capital": TOWNS, "founder": PEOPLE}
"""What is known of each island, and the values that it may have."""
WORDINGS = ("Name the {kind} of {islands}.", "Find the {kind} of {islands}.", "I need the {kind} of {islands}.")
HELD_OUT_WORDINGS = ("Write down the {kind} of {islands}.", "Look up the {kind} of {islands}.")
"""Wordings that are not trained."""


@dataclass(frozen=True, slots=True)
class Document:
    """A document of the corpus."""

    title: str
    text: str

    def __str__(self) -> str:
        return f"{self.title}. {self.text}"


@dataclass(frozen=True, slots=True)
class Question:
    """A question about one thing of some islands, and what is known of each of them."""

    text: str
    kind: str
    wanted: dict[str, str]


@cache
def facts() -> dict[str, dict[str, str]]:
    """What is known of each island, by its name."""
    rng = random.Random("deep-research-corpus")
    names = [f"{syllable}{ending}".capitalize() for syllable in SYLLABLES for ending in ENDINGS + HELD_OUT_ENDINGS]
    return {name: {kind: rng.choice(values) for kind, values in KINDS.items()} for name in names}


@cache
def documents() -> list[Document]:
    """Two documents about each island, with two facts each."""
    made = []
    for name, known in facts().items():
        economy = f"The exports are {known['exports']}. The imports are {known['imports']}."
        history = f"The founder was {known['founder']}. The capital is {known['capital']}."
        made += [Document(f"Economy of {name}", economy), Document(f"History of {name}", history)]
    return made


def search(query: str) -> Document:
    """The document that has the most words of a query. Of those that have as many, the first."""
    words = _words(query)
    return max(documents(), key=lambda document: len(words & _words(str(document))))


@cache
def _words(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"\w+", text.lower()))


def draw(rng: random.Random, *, held_out: bool) -> Question:
    """A question about one to three islands.

    Args:
        rng: Draws it.
        held_out: Whether islands and wording are held out.
    """
    endings = tuple(HELD_OUT_ENDINGS if held_out else ENDINGS)
    islands = rng.sample([name for name in facts() if name.endswith(endings)], rng.choice((1, 2, 2, 3)))
    kind = rng.choice(list(KINDS))
    wording = rng.choice(HELD_OUT_WORDINGS if held_out else WORDINGS)
    text = wording.format(kind=kind, islands=listed(islands))
    return Question(text, kind, {island: facts()[island][kind] for island in islands})


def listed(names: Sequence[str]) -> str:
    """Names as English lists them: "A, B and C"."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last
