"""A mailbox of 10,000 emails that is made by script, in SQLite with full-text search, and questions about it.

Run by the MCP server too, as a script: it imports the standard library alone.
"""

from __future__ import annotations

import json
import random
import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Literal


def _listed(words: str) -> list[str]:
    return words.split()


FIRST = _listed("Anna Boris Clara David Elena Felix Greta Henry Irene Jonas Karin Lukas Maria Nils Olivia Peter")
LAST = _listed("Adams Berger Costa Duval Evans Fischer Garcia Hansen Ibsen Jensen Keller Larsen Moreau Novak")
COLOURS = _listed(
    "Amber Azure Black Blue Brass Bronze Copper Coral Crimson Emerald Golden Green Grey Indigo Ivory Jade "
    "Olive Orange Pearl Purple Ruby Scarlet Silver Violet White"
)
ANIMALS = _listed(
    "Badger Bear Crane Deer Eagle Falcon Fox Hawk Heron Horse Lion Lynx Otter Owl Panther Raven Salmon Seal"
)
VALIDATION_ANIMALS = _listed("Swan Tiger")
"""Projects of these names are in the questions by which the best version is chosen, and in no others."""
HELD_OUT_ANIMALS = _listed("Beaver Camel Dolphin Leopard Wolf")
"""Projects of these names are in the held-out questions, and in no others."""
MONTHS = _listed("January February March April May June July August September October November December")

KINDS = {
    "budget": (
        "What is the budget of {project}?",
        "How much may {project} cost?",
        "Which budget is there for {project}?",
        "What budget does {project} have?",
    ),
    "deadline": (
        "When is the deadline of {project}?",
        "By when must {project} end?",
        "What is the deadline for {project}?",
        "Which deadline has {project}?",
    ),
    "room": (
        "In which room is {project} discussed?",
        "Which room is {project} in?",
        "What room does {project} have?",
        "What is the room of {project}?",
    ),
    "leader": (
        "Who is the leader of {project}?",
        "Who leads {project}?",
        "What leader does {project} have?",
        "Which person is leader of {project}?",
    ),
}
"""What threads are about, and how it is asked for. The last wording of each is held out, and the last but one is for
validation: by these questions the best version is chosen."""
Part = Literal["training", "validation", "held_out"]
"""What a question is for."""
MAX_HITS = 5
"""Most emails that a search lists."""


@dataclass(frozen=True, slots=True)
class Email:
    """An email. Its number is its place in the mailbox, from 1."""

    number: int
    sent: date
    sender: str
    recipient: str
    thread: int
    subject: str
    body: str

    def __str__(self) -> str:
        head = f"From: {self.sender}\nTo: {self.recipient}\nDate: {self.sent}\nSubject: {self.subject}"
        return f"{head}\n\n{self.body}"


@dataclass(frozen=True, slots=True)
class Question:
    """A question whose answer an email has.

    Args:
        text: The question.
        project: The project that it is about.
        kind: What is asked for, a key of KINDS.
        answer: The value that is valid.
        outdated: The value that was valid before. Empty: there was none.
        source: Number of the email that has the answer.
    """

    text: str
    project: str
    kind: str
    answer: str
    outdated: str
    source: int


def make(seed: int = 0) -> tuple[list[Email], list[tuple[str, str, str, str, int]]]:
    """The emails, and what can be asked about them: project, kind, answer, outdated answer, source.

    There is a thread of four emails for each kind and each of 625 projects. The first asks, the second has a value.
    In every other thread the fourth corrects it; in every other of the rest it repeats the word without a value.
    """
    rng = random.Random(f"mailbox-{seed}")
    people = [f"{first} {last}" for first in FIRST for last in LAST]
    threads = [(f"{colour} {animal}", kind) for colour in COLOURS
               for animal in (*ANIMALS, *VALIDATION_ANIMALS, *HELD_OUT_ANIMALS)
               for kind in KINDS]  # fmt: skip
    rng.shuffle(threads)
    emails, facts = list[Email](), list[tuple[str, str, str, str, int]]()
    for at, (project, kind) in enumerate(threads):
        first, last = (value(kind, rng, people) for _ in range(2))
        corrected = at % 2 == 0 and first != last
        ending = f"The {kind} has changed. It is now {last}." if corrected else (
            f"Does anybody object to the {kind}?" if at % 4 == 1 else "Thank you, that is all.")  # fmt: skip
        bodies = [f"Do we know the {kind} yet?", f"The {kind} is {first}.", "Good, I will tell the others.", ending]
        pair, day = rng.sample(people, 2), date(2025, 1, 1) + timedelta(days=rng.randrange(340))
        for place, body in enumerate(bodies):
            sender, recipient = pair if place % 2 == 0 else reversed(pair)
            day += timedelta(days=rng.randrange(1, 5))
            subject = project if place == 0 else f"Re: {project}"
            emails.append(Email(len(emails) + 1, day, sender, recipient, at + 1, subject, body))
        source = emails[-1 if corrected else -3].number
        facts.append((project, kind, last if corrected else first, first if corrected else "", source))
    return emails, facts


def value(kind: str, rng: random.Random, people: Sequence[str]) -> str:
    """A value of a kind."""
    return {
        "budget": f"{rng.randrange(11, 100) * 100} euros",
        "deadline": f"{rng.randrange(1, 29)} {rng.choice(MONTHS)}",
        "room": f"room {rng.randrange(101, 500)}",
        "leader": rng.choice(people),
    }[kind]


def questions(facts: Sequence[tuple[str, str, str, str, int]], part: Part) -> Iterator[Question]:
    """All questions for something. Each part has projects and wordings of its own."""
    animals = {"training": ANIMALS, "validation": VALIDATION_ANIMALS, "held_out": HELD_OUT_ANIMALS}[part]
    for at, (project, kind, answer, outdated, source) in enumerate(facts):
        if project.split()[1] in animals:
            *trained, validation, held_out = KINDS[kind]
            wording = {"training": trained[at % len(trained)], "validation": validation, "held_out": held_out}[part]
            yield Question(wording.format(project=project), project, kind, answer, outdated, source)


def write(path: Path, emails: Sequence[Email]) -> None:
    """Writes emails to a new SQLite file, with an index of the words in their subjects and bodies."""
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(
            "CREATE TABLE emails (number INTEGER PRIMARY KEY, sent, sender, recipient, thread INT, subject, body)"
        )
        database.execute("CREATE VIRTUAL TABLE words USING fts5(subject, body, content=emails, content_rowid=number)")
        rows = [(one.number, one.sent.isoformat(), one.sender, one.recipient, one.thread, one.subject, one.body)
                for one in emails]  # fmt: skip
        database.executemany("INSERT INTO emails VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
        database.execute("INSERT INTO words (words) VALUES ('rebuild')")


def search(path: Path, keywords: str) -> str:
    """The newest emails that have all of the words, one a line: number, date, sender, subject."""
    words = " ".join(f'"{word}"' for word in re.findall(r"\w+", keywords))
    found = "SELECT rowid FROM words WHERE words MATCH ?"
    query = f"SELECT number, sent, sender, subject FROM emails WHERE number IN ({found}) ORDER BY sent DESC LIMIT ?"
    with closing(sqlite3.connect(path)) as database:
        rows = database.execute(query, (words, MAX_HITS)).fetchall() if words else []
    return "\n".join(" | ".join(map(str, row)) for row in rows) or "No email has all of these words."


def grade(begun: str, went_on: str) -> float:
    """Grades a run by its transcript, as somebody would who does not know the answer. A quarter each: a search found
    emails; one was read; the answer is in an email that was read; and this email is its source.

    Args:
        begun: How all runs of a question begin.
        went_on: How this one goes on.
    """
    entries = re.split(r"^\[([^\]\n]*)\] ", f"{begun}\n{went_on}", flags=re.MULTILINE)
    told = list(zip(entries[1::2], entries[2::2], strict=True))
    emails, number, answered = dict[str, str](), "", dict[str, object]()
    for label, text in told:
        if label == "assistant calls a tool":
            asked = re.fullmatch(r"(\w+)\((.*)\)", text.strip(), re.DOTALL)
            tool, given = (asked[1], _object(asked[2])) if asked else ("", {})
            number = str(given.get("email")) if tool == "read" else ""
            answered = given if tool == "answer" else answered
        elif label == "tool result" and number and text.startswith("From: "):
            emails[number] = text
    said, source = str(answered.get("text", "")), str(answered.get("source"))
    having = [number for number, text in emails.items() if said and said in text]
    found = any(label == "tool result" and re.match(r"\d+ \| ", text) for label, text in told)
    return (found + bool(emails) + bool(having) + (source in having)) / 4


def _object(text: str) -> dict[str, object]:
    """A JSON object. Anything else: an empty one."""
    try:
        given = json.loads(text)
    except ValueError:
        return {}
    return given if isinstance(given, dict) else {}


def read(path: Path, number: int) -> str:
    """An email. Raises LookupError where there is none of this number."""
    with closing(sqlite3.connect(path)) as database:
        row = database.execute("SELECT * FROM emails WHERE number = ?", (number,)).fetchone()
    if row is None:
        raise LookupError(f"there is no email {number}")
    number, sent, *others = row
    return str(Email(number, date.fromisoformat(sent), *others))
