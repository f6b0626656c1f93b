"""mcp-server-duckdb on a database of a theatre: plays, halls, performances."""

from __future__ import annotations

import json
import random
import subprocess
from pathlib import Path

from benchmarks.servers.server import BenchmarkServer, pypi
from benchmarks.servers.words import CITIES, PEOPLE

_PLAYS = ("The Ferry", "Two Lamps", "Winter Guests", "A House in Oslo", "The Last Tram", "Salt", "Morning Court")
_SCHEMA = (
    "CREATE TABLE plays (id INTEGER PRIMARY KEY, title VARCHAR, author VARCHAR, minutes INTEGER)",
    "CREATE TABLE halls (id INTEGER PRIMARY KEY, city VARCHAR, seats INTEGER)",
    "CREATE TABLE performances (id INTEGER PRIMARY KEY, play_id INTEGER, hall_id INTEGER, day DATE, sold INTEGER)",
)
_SCRIPT = """
import duckdb, json, sys
made = json.load(sys.stdin)
with duckdb.connect(made["path"]) as database:
    for statement in made["schema"]:
        database.execute(statement)
    for table, rows in made["tables"].items():
        database.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(rows[0]))})", rows)
"""


def _program() -> str:
    return pypi("mcp-server-duckdb", "mcp-server-duckdb==1.1.0", "mcp<2")


def make_theatre(where: Path, seed: int) -> Path:
    """Makes the database, with the DuckDB of the server's environment: the file has the format of its version.

    Args:
        where: An empty directory.
        seed: Seed of the rows.

    Returns:
        The file of the database.
    """
    rng, path = random.Random(f"theatre-{seed}"), where / "theatre.duckdb"
    plays = [[at, one, " ".join(rng.choice(PEOPLE)), rng.randrange(70, 190)] for at, one in enumerate(_PLAYS, 1)]
    halls = [[at, one, rng.randrange(80, 900)] for at, one in enumerate(rng.sample(CITIES, 6), 1)]
    shows = []
    for at in range(1, 31):
        day = f"2026-{rng.randrange(1, 13):02}-{rng.randrange(1, 29):02}"
        shows.append([at, rng.randrange(1, 8), rng.randrange(1, 7), day, rng.randrange(20, 80)])
    made = {"path": str(path), "schema": _SCHEMA, "tables": {"plays": plays, "halls": halls, "performances": shows}}
    python = Path(_program()).parent / "python"
    subprocess.run([str(python), "-c", _SCRIPT], input=json.dumps(made), text=True, check=True, timeout=120)
    return path


SERVER = BenchmarkServer(
    "mcp-server-duckdb",
    lambda: [_program(), "--db-path", "{world}"],
    make_theatre,
)
