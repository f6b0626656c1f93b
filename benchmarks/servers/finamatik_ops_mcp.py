"""finamatik-ops-mcp on a directory with the database of a repair firm: contacts, deals, tasks, notes, stock, orders."""

from __future__ import annotations

import json
import random
import sqlite3
from contextlib import closing
from datetime import date, timedelta
from pathlib import Path

from benchmarks.servers.server import BenchmarkServer, pypi
from benchmarks.servers.words import CITIES, PEOPLE, PRODUCTS

_SCHEMA = """
CREATE TABLE contacts (id TEXT PRIMARY KEY, name TEXT, company TEXT, email TEXT, phone TEXT, city TEXT, owner TEXT,
                       tags TEXT, created_at TEXT);
CREATE TABLE deals (id TEXT PRIMARY KEY, contact_id TEXT, title TEXT, stage TEXT, value_aed REAL, expected_close TEXT,
                    updated_at TEXT);
CREATE TABLE tasks (id TEXT PRIMARY KEY, contact_id TEXT, title TEXT, due_date TEXT, assignee TEXT, status TEXT,
                    created_at TEXT, completed_at TEXT);
CREATE TABLE notes (id TEXT PRIMARY KEY, contact_id TEXT, text TEXT, author TEXT, created_at TEXT);
CREATE TABLE inventory (sku TEXT PRIMARY KEY, name TEXT, qty INTEGER, reorder_level INTEGER, unit_price_aed REAL,
                        supplier TEXT);
CREATE TABLE orders (id TEXT PRIMARY KEY, contact_id TEXT, sku TEXT, qty INTEGER, total_aed REAL, status TEXT,
                     created_at TEXT);
"""
_STAGES = ("new", "qualified", "proposal", "negotiation", "won", "lost")
_OWNERS = ("hamza", "sana", "ali")
_COMPANIES = ("Quay Bakery", "Hill Dental", "Orchard School", "Mill Hotel", "Lake Motors", "Birch Pharmacy")
_DEALS = ("Heating contract", "New lift", "Roof repair", "Cleaning for a year", "Garden lights", "Kitchen fitting")
_TASKS = ("Send the quote", "Confirm the visit", "Collect the contract", "Call about the invoice", "Order the parts")
_NOTES = ("Prefers mornings", "Asked for a discount", "Paid late last year", "Has a dog", "Wants a second quote")
_TODAY = date(2026, 11, 20)


def make_firm(where: Path, seed: int) -> Path:
    """Makes the directory of the database.

    Args:
        where: An empty directory.
        seed: Seed of the rows.

    Returns:
        The directory.
    """
    rng, root = random.Random(f"firm-{seed}"), where / "firm"
    root.mkdir()

    def day(low: int, high: int) -> str:
        return str(_TODAY + timedelta(days=rng.randrange(low, high)))

    contacts = []
    for at, (first, last) in enumerate(rng.sample(PEOPLE, 15)):
        mail, phone = f"{first}.{last}@example.com".lower(), f"+4755{rng.randrange(100_000, 999_999)}"
        who = (f"C-{1_001 + at}", f"{first} {last}", rng.choice(_COMPANIES), mail, phone, rng.choice(CITIES))
        contacts.append((*who, rng.choice(_OWNERS), json.dumps(rng.sample(["vip", "ads"], 1)), day(-300, -30)))
    people = [one[0] for one in contacts]
    deals = []
    for at in range(16):
        deal = (f"D-{2_001 + at}", rng.choice(people), rng.choice(_DEALS), rng.choice(_STAGES))
        deals.append((*deal, rng.randrange(2, 90) * 500.0, day(-10, 90), f"{day(-30, 0)}T10:00:00Z"))
    tasks = []
    for at in range(20):
        made, done = f"{day(-20, -8)}T09:00:00Z", at % 3 == 2
        what = (f"T-{3_001 + at}", rng.choice(people), rng.choice(_TASKS), day(-5, 30), rng.choice(_OWNERS))
        tasks.append((*what, "done" if done else "open", made, f"{day(-7, 0)}T12:00:00Z" if done else None))
    notes = [
        (f"N-{4_001 + at}", rng.choice(people), rng.choice(_NOTES), rng.choice(_OWNERS), f"{day(-60, 0)}T08:00:00Z")
        for at in range(18)
    ]
    goods = []
    for at, one in enumerate(rng.sample(PRODUCTS, 12), 10):
        count, least, price = rng.randrange(0, 80), rng.randrange(4, 30), rng.randrange(5, 400) * 2.5
        goods.append((f"{one.upper()}-{at}", one, count, least, price, rng.choice(_COMPANIES)))
    orders = []
    for at in range(14):
        item, count = rng.choice(goods), rng.randrange(1, 6)
        state, when = rng.choice(("confirmed", "shipped", "delivered")), f"{day(-40, 0)}T15:00:00Z"
        orders.append((f"SO-{5_001 + at}", rng.choice(people), item[0], count, item[4] * count, state, when))
    with closing(sqlite3.connect(root / "ops.db")) as database, database:
        database.executescript(_SCHEMA)
        for table, rows in {
            "contacts": contacts, "deals": deals, "tasks": tasks, "notes": notes, "inventory": goods, "orders": orders,
        }.items():  # fmt: skip
            database.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(rows[0]))})", rows)
    return root


SERVER = BenchmarkServer(
    "finamatik-ops-mcp",
    lambda: [pypi("finamatik-ops-mcp", "finamatik-ops-mcp==0.1.1")],
    make_firm,
    {"HOME": "{world}", "OPS_MCP_HOME": "{world}"},
)
