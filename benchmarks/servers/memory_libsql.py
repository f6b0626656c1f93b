"""mcp-memory-libsql on a database of entities, what is known of them and how they are related: a theatre's season."""

from __future__ import annotations

import random
import sqlite3
from pathlib import Path

from benchmarks.servers.server import BenchmarkServer, npm_cache, npx
from benchmarks.servers.words import CITIES, PEOPLE

_PLAYS = ("The Seagull", "Hamlet", "Tartuffe", "Peer Gynt", "Antigone", "Faust", "Volpone", "Medea")
_TABLES = """
CREATE TABLE entities (name TEXT PRIMARY KEY, entity_type TEXT NOT NULL,
 created_at DATETIME DEFAULT CURRENT_TIMESTAMP);
CREATE TABLE observations (id INTEGER PRIMARY KEY AUTOINCREMENT, entity_name TEXT NOT NULL, content TEXT NOT NULL,
 created_at DATETIME DEFAULT CURRENT_TIMESTAMP, FOREIGN KEY (entity_name) REFERENCES entities(name));
CREATE TABLE relations (id INTEGER PRIMARY KEY AUTOINCREMENT, source TEXT NOT NULL, target TEXT NOT NULL,
 relation_type TEXT NOT NULL, created_at DATETIME DEFAULT CURRENT_TIMESTAMP,
 FOREIGN KEY (source) REFERENCES entities(name), FOREIGN KEY (target) REFERENCES entities(name));
"""


def make_season(where: Path, seed: int) -> Path:
    """Makes the database.

    Args:
        where: An empty directory.
        seed: Seed of who plays what.
    """
    rng, file = random.Random(f"season-{seed}"), where / "season.db"
    actors = [" ".join(one) for one in rng.sample(PEOPLE, 8)]
    facts = [(name, "actor", f"born in {rng.choice(CITIES)}") for name in actors]
    facts += [(play, "play", f"runs for {rng.randrange(8, 30)} evenings") for play in _PLAYS]
    with sqlite3.connect(file) as opened:
        opened.executescript(_TABLES)
        for name, kind, fact in facts:
            opened.execute("INSERT INTO entities (name, entity_type) VALUES (?, ?)", (name, kind))
            opened.execute("INSERT INTO observations (entity_name, content) VALUES (?, ?)", (name, fact))
        for name in actors:
            for play in rng.sample(_PLAYS, 2):
                row = (name, play, rng.choice(("plays in", "understudies in")))
                opened.execute("INSERT INTO relations (source, target, relation_type) VALUES (?, ?, ?)", row)
        for table in ("entities", "observations", "relations"):
            opened.execute(f"UPDATE {table} SET created_at = '2026-09-01 10:00:00'")
    return file


SERVER = BenchmarkServer(
    "memory-libsql",
    lambda: npx("mcp-memory-libsql@0.0.17"),
    make_season,
    {**npm_cache(), "LIBSQL_URL": "file:{world}"},
    use="seen",
)
