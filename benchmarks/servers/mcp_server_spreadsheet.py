"""mcp-server-spreadsheet on a directory of tables: members of a club as CSV, a workbook of courts and bookings."""

from __future__ import annotations

import csv
import random
from datetime import date, timedelta
from pathlib import Path

from benchmarks.servers.server import BenchmarkServer, pypi
from benchmarks.servers.words import CITIES, PEOPLE
from benchmarks.servers.workbook import Cell, write_workbook


def make_tables(where: Path, seed: int) -> Path:
    """Makes the directory.

    Args:
        where: An empty directory.
        seed: Seed of the rows.

    Returns:
        The directory.
    """
    rng, root = random.Random(f"tables-{seed}"), where / "club"
    root.mkdir()
    people = [" ".join(one) for one in rng.sample(PEOPLE, 14)]
    with (root / "members.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["number", "name", "city", "joined", "fee"])
        for at, name in enumerate(people):
            rows.writerow([101 + at, name, rng.choice(CITIES), rng.randrange(2008, 2026), rng.choice((40, 60, 85))])
    courts: list[list[Cell]] = [["Court", "Surface", "Price"]]
    courts += [[f"Court {at}", rng.choice(("clay", "grass", "hard")), rng.randrange(12, 30)] for at in range(1, 7)]
    bookings: list[list[Cell]] = [["Date", "Hour", "Court", "Member", "Paid"]]
    for at in range(26):
        day, hour = date(2026, 9, 1) + timedelta(days=at), rng.randrange(8, 21)
        bookings.append([day, hour, f"Court {rng.randrange(1, 7)}", rng.choice(people), rng.choice(("yes", "no"))])
    write_workbook(root / "courts.xlsx", {"Courts": courts, "Bookings": bookings})
    return root


SERVER = BenchmarkServer(
    "mcp-server-spreadsheet",
    lambda: [pypi("mcp-server-spreadsheet", "mcp-server-spreadsheet==0.3.3")],
    make_tables,
    {"HOME": "{world}"},
)
