"""mcp-sqlite (npm) on a database: the beds, plants and harvests of a community garden."""

from __future__ import annotations

import random
import sqlite3
from datetime import date, timedelta
from pathlib import Path

from benchmarks.servers.server import BenchmarkServer, npm_cache, npx
from benchmarks.servers.words import PEOPLE

_PLANTS = ("Tomato", "Leek", "Carrot", "Bean", "Pumpkin", "Basil", "Beetroot", "Chard", "Garlic", "Strawberry")
_TABLES = """
CREATE TABLE beds (id INTEGER PRIMARY KEY, gardener TEXT NOT NULL, square_metres REAL, sunny INTEGER);
CREATE TABLE plants (name TEXT PRIMARY KEY, sown_in TEXT, days_to_harvest INTEGER);
CREATE TABLE harvests (id INTEGER PRIMARY KEY, bed_id INTEGER REFERENCES beds(id),
 plant TEXT REFERENCES plants(name), day TEXT, kilograms REAL);
"""


def make_garden(where: Path, seed: int) -> Path:
    """Makes the database.

    Args:
        where: An empty directory.
        seed: Seed of the rows.
    """
    rng, file = random.Random(f"garden-{seed}"), where / "garden.db"
    with sqlite3.connect(file) as opened:
        opened.executescript(_TABLES)
        for at, name in enumerate(rng.sample(PEOPLE, 9)):
            row = (at + 1, " ".join(name), rng.randrange(8, 40) / 2, rng.randrange(2))
            opened.execute("INSERT INTO beds VALUES (?, ?, ?, ?)", row)
        for plant in _PLANTS:
            row = (plant, rng.choice(("March", "April", "May")), rng.randrange(40, 150))
            opened.execute("INSERT INTO plants VALUES (?, ?, ?)", row)
        for at in range(30):
            day = date(2026, 6, 1) + timedelta(days=4 * at)
            row = (at + 1, rng.randrange(1, 10), rng.choice(_PLANTS), str(day), rng.randrange(2, 60) / 10)
            opened.execute("INSERT INTO harvests VALUES (?, ?, ?, ?, ?)", row)
    return file


SERVER = BenchmarkServer(
    "sqlite-npm", lambda: [*npx("mcp-sqlite@1.0.9"), "{world}"], make_garden, npm_cache(), use="seen"
)
