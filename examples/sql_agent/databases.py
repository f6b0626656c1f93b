"""SQLite databases made by script, and questions about them with the queries that answer them.

A database has two tables. Each table is about one subject: things with a name, a text that several of them share, and
two numbers. Rows are invented; the same database has the same rows in every process. Of the texts each has another
number of rows, so that a question how many there are has no answer that is right in every table.
"""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import combinations, permutations

ROWS = 12
"""Rows of a table."""
MAX_ROWS_READ = 50
"""Largest number of rows that a query may give."""
MAX_STEPS = 200_000
"""Largest number of instructions of SQLite's machine that a query may take."""
_ALLOWED = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION}

Row = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Subject:
    """What a table is about.

    Args:
        table: Name of the table.
        name: Column with the name of a thing.
        kind: Column with a text that several things share.
        kinds: Values of `kind`.
        numbers: Columns with numbers.
    """

    table: str
    name: str
    kind: str
    kinds: tuple[str, ...]
    numbers: tuple[str, str]

    @property
    def schema(self) -> str:
        """The table with its columns, as a prompt shows it."""
        return f"{self.table}({self.name}, {self.kind}, {', '.join(self.numbers)})"


TRAINING_SUBJECTS = (
    Subject("books", "title", "genre", ("crime", "poetry", "history"), ("pages", "price")),
    Subject("employees", "name", "team", ("sales", "legal", "support"), ("age", "salary")),
    Subject("cars", "model", "color", ("red", "blue", "white"), ("year", "speed")),
    Subject("dogs", "name", "breed", ("terrier", "poodle", "beagle"), ("age", "weight")),
    Subject("hotels", "name", "city", ("Rome", "Oslo", "Cairo"), ("rooms", "stars")),
    Subject("students", "name", "subject", ("math", "biology", "music"), ("age", "score")),
    Subject("films", "title", "country", ("France", "India", "Japan"), ("year", "length")),
    Subject("shops", "owner", "street", ("Elm Street", "Main Street", "Park Road"), ("size", "rent")),
    Subject("songs", "title", "singer", ("Ella", "Prince", "Adele"), ("year", "plays")),
    Subject("phones", "model", "brand", ("Acme", "Orbit", "Zeta"), ("memory", "price")),
)
HELD_OUT_SUBJECTS = (
    Subject("ships", "name", "port", ("Hamburg", "Lagos", "Busan"), ("length", "crew")),
    Subject("mountains", "name", "region", ("Andes", "Alps", "Atlas"), ("height", "climbers")),
    Subject("recipes", "dish", "cuisine", ("Thai", "Greek", "Polish"), ("minutes", "calories")),
    Subject("players", "name", "position", ("keeper", "striker", "winger"), ("goals", "games")),
    Subject("bridges", "name", "river", ("Rhine", "Nile", "Volga"), ("width", "year")),
    Subject("museums", "name", "topic", ("art", "science", "trains"), ("visitors", "price")),
)


@dataclass(frozen=True, slots=True)
class Question:
    """A question about a database, and the query that answers it."""

    database: str
    text: str
    query: str


def database_name(first: Subject, second: Subject) -> str:
    """Name of the database with two tables."""
    return f"{first.table}-{second.table}"


@cache
def tables(database: str) -> tuple[Subject, Subject]:
    """The subjects of a database."""
    by_table = {subject.table: subject for subject in (*TRAINING_SUBJECTS, *HELD_OUT_SUBJECTS)}
    first, second = database.split("-")
    return by_table[first], by_table[second]


def schema(database: str) -> str:
    """The tables of a database, one a line."""
    return "\n".join(subject.schema for subject in tables(database))


@cache
def rows(database: str, subject: Subject) -> tuple[Row, ...]:
    """The rows of a table: name, kind, two numbers. Names and numbers of a column differ from row to row, and the kinds
    differ in their number of rows."""
    rng = random.Random(f"{database}/{subject.table}")
    syllables = [a + b for a in "BDKLMNRST" for b in "aeiou"]
    made = [rng.sample(range(10, 99), ROWS) for _ in subject.numbers]
    named = rng.sample([first + second.lower() for first in syllables for second in syllables], ROWS)
    divided = [counts for counts in permutations(range(1, ROWS), len(subject.kinds)) if sum(counts) == ROWS]
    kinds = rng.sample(subject.kinds, ROWS, counts=rng.choice(divided))
    return tuple(zip(named, kinds, *made, strict=True))


def questions(subject: Subject, database: str, rng: random.Random) -> list[Question]:
    """One question of each kind about a table of a database. The values in them are drawn."""
    table, name, kind = subject.table, subject.name, subject.kind
    number, value = rng.choice(subject.numbers), rng.choice(subject.kinds)
    middle = sorted(row[2 + subject.numbers.index(number)] for row in rows(database, subject))[ROWS // 2]  # type: ignore[type-var]
    most = rng.random() < 0.5
    asked = [
        (f"How many {table} have the {kind} {value}?", f"SELECT COUNT(*) FROM {table} WHERE {kind} = '{value}'"),
        (
            f"What is the {'highest' if most else 'lowest'} {number} of the {table}?",
            f"SELECT {'MAX' if most else 'MIN'}({number}) FROM {table}",
        ),
        (f"What is the average {number} of the {table}?", f"SELECT AVG({number}) FROM {table}"),
        (
            f"Which {name} of the {table} has the {'highest' if most else 'lowest'} {number}?",
            f"SELECT {name} FROM {table} ORDER BY {number}{' DESC' if most else ''} LIMIT 1",
        ),
        (
            f"List the {name} of all {table} with {number} {'above' if most else 'below'} {middle}.",
            f"SELECT {name} FROM {table} WHERE {number} {'>' if most else '<'} {middle}",
        ),
        (
            f"List the {name} of all {table} with the {kind} {value}.",
            f"SELECT {name} FROM {table} WHERE {kind} = '{value}'",
        ),
    ]
    return [Question(database, text, query) for text, query in asked]


def all_questions(subjects: Sequence[Subject], rng: random.Random) -> Iterator[Question]:
    """Questions about both tables of each pair of subjects."""
    for pair in combinations(subjects, 2):
        for subject in pair:
            yield from questions(subject, database_name(*pair), rng)


def execute(database: str, query: str) -> list[Row]:
    """Runs a query, which can read the tables and nothing else.

    Args:
        database: Name of the database.
        query: One SELECT statement.

    Raises:
        sqlite3.Error: The query is wrong, writes, or takes more than MAX_STEPS. The message is SQLite's.
    """
    with _opened(database) as connection:
        return connection.execute(query).fetchmany(MAX_ROWS_READ)


@contextmanager
def _opened(database: str) -> Iterator[sqlite3.Connection]:
    """A new copy of a database, in memory."""
    with closing(sqlite3.connect(":memory:")) as connection:
        for subject in tables(database):
            first, second = subject.numbers
            connection.execute(
                f"CREATE TABLE {subject.table} ({subject.name} TEXT, {subject.kind} TEXT, {first} INT, {second} INT)"
            )
            connection.executemany(f"INSERT INTO {subject.table} VALUES (?, ?, ?, ?)", rows(database, subject))
        connection.set_authorizer(lambda action, *_: sqlite3.SQLITE_OK if action in _ALLOWED else sqlite3.SQLITE_DENY)
        connection.set_progress_handler(lambda: 1, MAX_STEPS)
        yield connection
