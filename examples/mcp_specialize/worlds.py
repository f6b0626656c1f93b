"""What servers work on, made by script: a database of a library, and a Git repository."""

from __future__ import annotations

import os
import random
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

PEOPLE = ["Ada Moss", "Ben Hale", "Cleo Park", "Dan Frost", "Eva Stone", "Finn Reed", "Gus Lane", "Hana Wolf"]
TOPICS = ["login", "search", "billing", "export", "import", "cache", "report", "upload", "theme", "backup"]
BOOKS = ["Rivers", "Glass", "Winter", "Signals", "Orchards", "Maps", "Harbours", "Clay", "Comets", "Bridges"]
CITIES = ["Oslo", "Rome", "Lima", "Cairo", "Delhi", "Paris"]


def make_library(where: Path, seed: int) -> Path:
    """Makes a database of books and their readers in a directory. Returns its file."""
    rng, path = random.Random(f"library-{seed}"), where / "library.sqlite"
    readers = [(at, name, rng.choice(CITIES), rng.randrange(2015, 2026)) for at, name in enumerate(PEOPLE, 1)]
    books = [(at, name, rng.randrange(80, 900), rng.randrange(1950, 2026)) for at, name in enumerate(BOOKS, 1)]
    loans = [(at, rng.randrange(1, 9), rng.randrange(1, 11), rng.randrange(1, 30)) for at in range(1, 25)]
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE readers (id INTEGER PRIMARY KEY, name TEXT, city TEXT, since INTEGER)")
        database.execute("CREATE TABLE books (id INTEGER PRIMARY KEY, title TEXT, pages INTEGER, year INTEGER)")
        database.execute("CREATE TABLE loans (id INTEGER PRIMARY KEY, reader INTEGER, book INTEGER, days INTEGER)")
        database.executemany("INSERT INTO readers VALUES (?, ?, ?, ?)", readers)
        database.executemany("INSERT INTO books VALUES (?, ?, ?, ?)", books)
        database.executemany("INSERT INTO loans VALUES (?, ?, ?, ?)", loans)
    return path


def make_repository(where: Path, seed: int) -> Path:
    """Makes a Git repository with commits and branches in a directory. The same seed gives the same commits."""
    rng, path = random.Random(f"repository-{seed}"), where / "project"
    path.mkdir()
    moment = 1_780_000_000

    def git(*words: str, author: str = PEOPLE[0]) -> None:
        who = {f"GIT_{role}_NAME": author for role in ("AUTHOR", "COMMITTER")}
        who |= {f"GIT_{role}_EMAIL": "person@example.com" for role in ("AUTHOR", "COMMITTER")}
        when = {f"GIT_{role}_DATE": f"{moment} +0000" for role in ("AUTHOR", "COMMITTER")}
        none = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
        subprocess.run(["git", "-C", str(path), *words], check=True, env={**os.environ, **none, **who, **when})

    git("init", "-q", "-b", "main")
    for topic in rng.sample(TOPICS, len(TOPICS)):
        moment += rng.randrange(3_600, 200_000)
        lines = [f"{topic}_{line} = {rng.randrange(100)}" for line in range(rng.randrange(3, 8))]
        (path / f"{topic}.py").write_text("\n".join(lines) + "\n")
        git("add", ".")
        git("commit", "-q", "-m", f"{rng.choice(('Add', 'Fix', 'Speed up'))} the {topic}", author=rng.choice(PEOPLE))
    for topic in rng.sample(TOPICS, 4):
        git("branch", f"feature/{topic}", f"HEAD~{rng.randrange(4)}")
    (path / "notes.txt").write_text(f"To do: the {rng.choice(TOPICS)}\n")
    return path
