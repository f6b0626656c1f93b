"""tablebridge on a folder of CSV and JSON files: the flights, airports and aircraft of a small airline."""

from __future__ import annotations

import csv
import json
import random
from datetime import date, timedelta
from pathlib import Path

from benchmarks.servers.server import BenchmarkServer, pypi
from benchmarks.servers.words import CITIES, PEOPLE

_TYPES = ("ATR 72", "Dash 8", "Embraer 190", "Airbus A220")


def make_airline(where: Path, seed: int) -> Path:
    """Makes the directory.

    Args:
        where: An empty directory.
        seed: Seed of the rows.

    Returns:
        The directory.
    """
    rng, root = random.Random(f"airline-{seed}"), where / "airline"
    root.mkdir()
    airports = [{"code": one[:3].upper(), "city": one, "runways": rng.randrange(1, 5)} for one in CITIES]
    (root / "airports.json").write_text(json.dumps(airports, indent=1))
    tails = [f"LN-{chr(65 + at)}{rng.choice('KLMNP')}{rng.choice('RSTUV')}" for at in range(8)]
    aircraft = [[tail, rng.choice(_TYPES), rng.randrange(50, 140), rng.randrange(2004, 2025)] for tail in tails]
    flights = []
    for at in range(36):
        begin, end = rng.sample(CITIES, 2)
        day = date(2026, 10, 1) + timedelta(days=at % 12)
        pilot, delay = " ".join(rng.choice(PEOPLE)), rng.choice((0, 0, 0, 5, 15, 40))
        flights.append([f"WF{201 + at}", day, begin[:3].upper(), end[:3].upper(), rng.choice(tails), pilot, delay])
    for name, head, rows in (
        ("aircraft", ["tail", "type", "seats", "built"], aircraft),
        ("flights", ["flight", "day", "origin", "destination", "tail", "captain", "delay_minutes"], flights),
    ):
        with (root / f"{name}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([head, *rows])
    return root


SERVER = BenchmarkServer(
    "tablebridge",
    lambda: [pypi("tablebridge", "tablebridge==0.1.1", "mcp<2")],
    make_airline,
    {"HOME": "{world}", "TABLEBRIDGE_DATA_DIR": "{world}"},
)
