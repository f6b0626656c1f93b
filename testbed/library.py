"""An MCP server for tests and benchmarks: a lending library on SQLite.

    python testbed/library.py --make PATH [--seed N]
    python testbed/library.py --db PATH

The first command makes the database, the second serves it over stdio.
"""

from __future__ import annotations

import argparse
import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import date, timedelta
from pathlib import Path
from typing import Any

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

SCHEMA = """
CREATE TABLE books (title TEXT PRIMARY KEY COLLATE NOCASE, author TEXT NOT NULL COLLATE NOCASE, year INTEGER NOT NULL,
                    shelf TEXT NOT NULL COLLATE NOCASE);
CREATE TABLE members (name TEXT PRIMARY KEY COLLATE NOCASE, city TEXT NOT NULL COLLATE NOCASE, since INTEGER NOT NULL);
CREATE TABLE loans (title TEXT PRIMARY KEY COLLATE NOCASE REFERENCES books (title),
                    member TEXT NOT NULL COLLATE NOCASE REFERENCES members (name), due TEXT NOT NULL);
"""
SHELVES = [f"{letter}{number}" for letter in "ABCDEF" for number in range(1, 5)]
BOOKS = {
    "Ursula K. Le Guin": {
        "The Dispossessed": 1974, "The Left Hand of Darkness": 1969, "A Wizard of Earthsea": 1968,
        "The Lathe of Heaven": 1971, "The Word for World Is Forest": 1972,
    },
    "Italo Calvino": {
        "Invisible Cities": 1972, "The Baron in the Trees": 1957, "Cosmicomics": 1965, "Marcovaldo": 1963,
    },
    "Toni Morrison": {"Beloved": 1987, "Sula": 1973, "Jazz": 1992, "Home": 2012, "Song of Solomon": 1977},
    "Frank Herbert": {"Dune": 1965, "Dune Messiah": 1969, "Whipping Star": 1970},
    "Virginia Woolf": {"Orlando": 1928, "Mrs Dalloway": 1925, "The Waves": 1931, "To the Lighthouse": 1927},
    "Chinua Achebe": {"Things Fall Apart": 1958, "Arrow of God": 1964, "No Longer at Ease": 1960},
    "Kazuo Ishiguro": {"Never Let Me Go": 2005, "The Remains of the Day": 1989, "Klara and the Sun": 2021},
    "Agatha Christie": {
        "Curtain": 1975, "Nemesis": 1971, "Endless Night": 1967, "The Hollow": 1946, "Five Little Pigs": 1942,
    },
    "Stanislaw Lem": {"Solaris": 1961, "The Cyberiad": 1965, "Fiasco": 1986, "Eden": 1959},
    "Octavia E. Butler": {"Kindred": 1979, "Dawn": 1987, "Wild Seed": 1980, "Fledgling": 2005},
}  # fmt: skip
"""Titles and years, by author."""
MEMBERS = (
    "Anna Berg", "Bashir Haddad", "Carla Nunes", "Dario Conti", "Elif Kaya", "Femi Ojo", "Greta Lind", "Hiro Tanaka",
    "Ines Rocha", "Jonas Weber", "Kofi Mensah", "Lena Novak", "Marta Ruiz", "Nils Holm", "Olga Petrova",
)  # fmt: skip
CITIES = ("Bergen", "Ghent", "Lyon", "Porto", "Graz")
LOANS = 8

server = MCPServer("library", log_level="CRITICAL")
place = Path()
"""The database that is served."""


def make_library(path: Path, seed: int = 0) -> Path:
    """Makes the database: 40 books, 15 members in five cities, 8 loans.

    Args:
        path: The file, which must not exist.
        seed: Seed of shelves, cities and loans.

    Returns:
        The path.
    """
    rng = random.Random(f"library-{seed}")
    used = rng.sample(SHELVES, 14)
    books = [(title, author, year, rng.choice(used)) for author, of in BOOKS.items() for title, year in of.items()]
    cities = [CITIES[at % len(CITIES)] for at in range(len(MEMBERS))]
    rng.shuffle(cities)
    members = [(name, city, rng.randrange(2012, 2026)) for name, city in zip(MEMBERS, cities, strict=True)]
    loans = [
        (title, rng.choice(MEMBERS[:10]), str(date(2026, 12, 1) + timedelta(days=rng.randrange(60))))
        for title, *_ in rng.sample(books, LOANS)
    ]
    with closing(sqlite3.connect(path)) as database, database:
        database.executescript(SCHEMA)
        database.executemany("INSERT INTO books VALUES (?, ?, ?, ?)", books)
        database.executemany("INSERT INTO members VALUES (?, ?, ?)", members)
        database.executemany("INSERT INTO loans VALUES (?, ?, ?)", loans)
    return path


@contextmanager
def opened() -> Iterator[sqlite3.Connection]:
    """The database within a transaction."""
    with closing(sqlite3.connect(place)) as database, database:
        database.row_factory = sqlite3.Row
        yield database


def rows(database: sqlite3.Connection, sql: str, **values: Any) -> list[dict[str, Any]]:
    return [dict(row) for row in database.execute(sql, values)]


def book(database: sqlite3.Connection, title: str) -> dict[str, Any]:
    """A book with its loan, if it is on loan.

    Raises:
        ToolError: There is none with that title.
    """
    found = rows(database, "SELECT * FROM books LEFT JOIN loans USING (title) WHERE title = :title", title=title)
    if not found:
        raise ToolError(f"there is no book {title!r}")
    return {name: value for name, value in found[0].items() if value is not None}


def member_name(database: sqlite3.Connection, name: str) -> str:
    """The name as the database spells it.

    Raises:
        ToolError: There is no such member.
    """
    found = rows(database, "SELECT name FROM members WHERE name = :name", name=name)
    if not found:
        raise ToolError(f"unknown member {name!r}")
    return str(found[0]["name"])


@server.tool()
def find_books(author: str | None = None, shelf: str | None = None, after_year: int | None = None) -> dict[str, Any]:
    """Find books"""
    with opened() as database:
        found = rows(
            database,
            "SELECT * FROM books WHERE (:author IS NULL OR author = :author) AND (:shelf IS NULL OR shelf = :shelf) "
            "AND (:year IS NULL OR year > :year) ORDER BY title",
            author=author,
            shelf=shelf,
            year=after_year,
        )
    return {"books": found}


@server.tool()
def book_by_title(title: str) -> dict[str, Any]:
    """Get a book"""
    with opened() as database:
        return book(database, title)


@server.tool()
def member_loans(name: str) -> dict[str, Any]:
    """List the loans of a member"""
    with opened() as database:
        known = member_name(database, name)
        loans = rows(database, "SELECT title, due FROM loans WHERE member = :name ORDER BY due, title", name=known)
    return {"member": known, "loans": loans}


@server.tool()
def check_out(title: str, member: str, due: str) -> str:
    """Lend a book to a member"""
    with opened() as database:
        lent = book(database, title)
        known = member_name(database, member)
        if "due" in lent:
            raise ToolError(f"{lent['title']!r} is on loan already")
        try:
            day = date.fromisoformat(due)
        except ValueError:
            raise ToolError("due must be a date such as 2026-01-31") from None
        database.execute("INSERT INTO loans VALUES (?, ?, ?)", (lent["title"], known, str(day)))
    return f"{lent['title']!r} is lent to {known} until {day}"


@server.tool()
def return_book(title: str) -> str:
    """Take a book back"""
    with opened() as database:
        lent = book(database, title)
        if "due" not in lent:
            raise ToolError(f"{lent['title']!r} is not on loan")
        database.execute("DELETE FROM loans WHERE title = ?", (lent["title"],))
    return f"{lent['title']!r} is back"


@server.tool()
def members_in(city: str) -> dict[str, Any]:
    """List the members in a city"""
    with opened() as database:
        return {"members": rows(database, "SELECT * FROM members WHERE city = :city ORDER BY name", city=city)}


@server.tool()
def move_book(title: str, shelf: str) -> str:
    """Move a book to another shelf"""
    with opened() as database:
        known = book(database, title)["title"]
        if shelf.upper() not in SHELVES:
            raise ToolError(f"there is no shelf {shelf!r}: shelves are {SHELVES[0]} to {SHELVES[-1]}")
        database.execute("UPDATE books SET shelf = ? WHERE title = ?", (shelf.upper(), known))
    return f"{known!r} is on shelf {shelf.upper()} now"


def main() -> None:
    global place
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    either = parser.add_mutually_exclusive_group(required=True)
    either.add_argument("--db", type=Path, help="serve this database")
    either.add_argument("--make", type=Path, help="make the database, and end")
    parser.add_argument("--seed", type=int, default=0, help="of the database that is made (0)")
    options = parser.parse_args()
    if options.make:
        make_library(options.make, options.seed)
        return
    place = options.db
    server.run()


if __name__ == "__main__":
    main()
