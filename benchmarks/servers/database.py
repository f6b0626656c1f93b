"""mcp-server-sqlite on a database of a shop: customers, products, orders."""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing
from pathlib import Path

from benchmarks.servers.server import BenchmarkServer, pypi
from benchmarks.servers.words import CITIES, PEOPLE, PRODUCTS

_SCHEMA = """
CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT NOT NULL, city TEXT NOT NULL, since INTEGER NOT NULL);
CREATE TABLE products (id INTEGER PRIMARY KEY, name TEXT NOT NULL, price REAL NOT NULL, stock INTEGER NOT NULL);
CREATE TABLE orders (id INTEGER PRIMARY KEY, customer_id INTEGER NOT NULL REFERENCES customers (id),
                     product_id INTEGER NOT NULL REFERENCES products (id), quantity INTEGER NOT NULL);
"""


def make_database(where: Path, seed: int) -> Path:
    """Makes the database.

    Args:
        where: An empty directory.
        seed: Seed of the rows.

    Returns:
        The file of the database.
    """
    rng, path = random.Random(f"database-{seed}"), where / "shop.db"
    people, products = rng.sample(PEOPLE, 12), rng.sample(PRODUCTS, 12)
    customers = [(at, " ".join(one), rng.choice(CITIES), rng.randrange(2015, 2026)) for at, one in enumerate(people, 1)]
    goods = [(at, one, rng.randrange(200, 9_000) / 100, rng.randrange(60)) for at, one in enumerate(products, 1)]
    orders = [(at, rng.randrange(1, 13), rng.randrange(1, 13), rng.randrange(1, 6)) for at in range(1, 31)]
    with closing(sqlite3.connect(path)) as database, database:
        database.executescript(_SCHEMA)
        database.executemany("INSERT INTO customers VALUES (?, ?, ?, ?)", customers)
        database.executemany("INSERT INTO products VALUES (?, ?, ?, ?)", goods)
        database.executemany("INSERT INTO orders VALUES (?, ?, ?, ?)", orders)
    return path


SERVER = BenchmarkServer(
    "sqlite",
    lambda: [pypi("mcp-server-sqlite", "mcp-server-sqlite==2025.4.25", "mcp<2"), "--db-path", "{world}"],
    make_database,
    use="development",
)
