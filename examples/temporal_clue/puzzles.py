"""Deduction puzzles, made on the spot: at each time three people are in three rooms, and one of them does it.

A puzzle has just the clues that leave one solution, or it states all facts, so that they need only be looked up. That
there is one solution is verified by trying all worlds that the clues allow.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, reduce
from itertools import permutations, product
from operator import and_

TIMES = ("noon", "night")
ROOMS = ("hall", "kitchen", "study")


@dataclass(frozen=True, slots=True)
class World:
    """What happened.

    Args:
        rooms: At each time, the room of each person. No two people are in one room.
        time: Number of the time of the crime.
        room: The room of the crime. Whoever was there at that time did it.
    """

    rooms: tuple[tuple[str, ...], ...]
    time: int
    room: str

    @property
    def culprit(self) -> int:
        """Number of the person who did it."""
        return self.rooms[self.time].index(self.room)


@dataclass(frozen=True, slots=True)
class Clue:
    """A fact about a world, or that it is no fact.

    Args:
        holds: False turns the clue round: "not in the hall".
        time: Number of a time. None: the clue is about the crime's room.
        room: A room. None: the clue is about the crime's time.
        person: Number of a person. None: the clue is about the crime.
    """

    holds: bool
    time: int | None = None
    room: str | None = None
    person: int | None = None

    def allows(self, world: World) -> bool:
        """Whether the clue is true in a world."""
        if self.person is not None and self.time is not None:
            fact = world.rooms[self.time][self.person] == self.room
        else:
            fact = world.time == self.time if self.room is None else world.room == self.room
        return fact == self.holds

    def text(self, people: Sequence[str]) -> str:
        """The clue in words."""
        who = "The crime" if self.person is None else people[self.person]
        where = "" if self.room is None else f" in the {self.room}"
        when = "" if self.time is None else f" at {TIMES[self.time]}"
        return f"{who} was{'' if self.holds else ' not'}{where}{when}."


@dataclass(frozen=True, slots=True)
class Puzzle:
    """Clues, and the one solution that they leave."""

    people: tuple[str, ...]
    clues: tuple[Clue, ...]
    when: str
    where: str
    who: str

    @property
    def text(self) -> str:
        """The puzzle in words."""
        people = f"{', '.join(self.people[:-1])} and {self.people[-1]}"
        return "\n".join([f"{people} were each in another room.", *(clue.text(self.people) for clue in self.clues)])


@cache
def worlds() -> tuple[World, ...]:
    """All worlds."""
    placed = product(permutations(ROOMS), repeat=len(TIMES))
    return tuple(World(rooms, time, room) for rooms in placed for time in range(len(TIMES)) for room in ROOMS)


@cache
def _bits(clue: Clue) -> int:
    """The worlds that a clue allows, as the bits of a number."""
    return sum(1 << at for at, world in enumerate(worlds()) if clue.allows(world))


@cache
def _outcomes() -> dict[tuple[int, str, int], int]:
    """The worlds that have the same time, room and culprit, as the bits of a number."""
    found: dict[tuple[int, str, int], int] = {}
    for at, world in enumerate(worlds()):
        outcome = (world.time, world.room, world.culprit)
        found[outcome] = found.get(outcome, 0) | 1 << at
    return found


def solutions(clues: Sequence[Clue]) -> set[tuple[int, str, int]]:
    """Time, room and culprit of every world that the clues allow."""
    allowed = reduce(and_, map(_bits, clues), -1)
    return {outcome for outcome, bits in _outcomes().items() if bits & allowed}


def all_clues() -> list[Clue]:
    """Every clue that there is."""
    of_crime = [Clue(holds, time=time) for holds in (True, False) for time in range(len(TIMES))]
    of_crime += [Clue(holds, room=room) for holds in (True, False) for room in ROOMS]
    places = product((True, False), range(len(TIMES)), ROOMS, range(len(ROOMS)))
    return [*of_crime, *(Clue(*place) for place in places)]


def make(people: tuple[str, ...], rng: random.Random, *, stated: bool = False) -> Puzzle:
    """A puzzle.

    Args:
        people: Names of as many people as there are rooms.
        rng: Draws what happened, and the clues.
        stated: Whether the clues are all that happened: time and room of the crime, and where everybody was at each
            time. Else they are a few, none of which can be left out.
    """
    world = rng.choice(worlds())
    clues = [clue for clue in all_clues() if clue.allows(world)]
    if stated:
        clues = [clue for clue in clues if clue.holds]
    rng.shuffle(clues)
    for clue in () if stated else tuple(clues):
        fewer = [other for other in clues if other != clue]
        if len(solutions(fewer)) == 1:
            clues = fewer
    rng.shuffle(clues)
    return Puzzle(people, tuple(clues), TIMES[world.time], world.room, people[world.culprit])
