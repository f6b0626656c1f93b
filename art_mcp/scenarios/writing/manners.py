"""How a request is to sound: who writes it, what for, and in which manner. Some manners are held out."""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass

PERSONS = (
    "somebody between two meetings",
    "a trainee on the second day",
    "somebody who has done this for twenty years",
    "an editor who minds every word",
    "a student late at night",
    "the owner of a small firm",
    "somebody on a train, with one hand on the phone",
    "an auditor",
    "a parent with a child on the lap",
    "somebody who writes in a second language",
    "a team lead before the weekly call",
    "a volunteer who helps out",
    "an engineer on call",
    "somebody who is annoyed, and hides it",
)
GOALS = (
    "to put it into a message to somebody else",
    "to settle a doubt",
    "to get it off the list",
    "to compare it with what they remember",
    "to prepare for a talk",
    "because somebody has asked them",
    "to decide what comes next",
    "out of curiosity",
)
MANNERS = {
    "question": "one plain question",
    "order": "a short order, without please and thanks",
    "fragment": "a fragment of a few words, as one types it into a search box: no sentence, no full stop",
    "polite": "polite, in one or two whole sentences",
    "context": "first a sentence on what the person is at, and then the request",
    "reason": "the request, and after it why it is needed",
    "hint": "no request at all: the person says what they do not know or what they lack, and leaves the rest to the "
    "reader",
    "chat": "lower case, as in a chat, with an abbreviation or a slip of the keyboard, but never in a value",
    "turn": "the person begins to say it, corrects themselves, and then comes to the point",
    "dictation": "spoken into a phone: one long sentence with hardly a comma",
}
"""What a manner means, by its name."""

HELD_OUT = 2
"""Manners that training never has."""


@dataclass(frozen=True, slots=True)
class Voice:
    """How a request is to sound.

    Args:
        person: Who writes it.
        goal: What for.
        manner: Name of the manner.
    """

    person: str
    goal: str
    manner: str


def voice(rng: random.Random, seed: int, held: bool) -> Voice:
    """Draws how a request is to sound.

    Args:
        rng: Source of randomness.
        seed: Seed of the manners that are held out.
        held: Whether the manner is a held-out one.
    """
    order = sorted(MANNERS, key=lambda manner: hashlib.sha256(f"{seed} {manner}".encode()).digest())
    return Voice(rng.choice(PERSONS), rng.choice(GOALS), rng.choice(order[:HELD_OUT] if held else order[HELD_OUT:]))
