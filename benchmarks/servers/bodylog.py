"""bodylog on a directory with its database: a month of training and of meals."""

from __future__ import annotations

import random
import sqlite3
import subprocess
from datetime import datetime, timedelta
from pathlib import Path

from benchmarks.servers.server import BenchmarkServer
from testbed.environments import environment

_LIFTS = {"Bench Press": 60, "Back Squat": 90, "Deadlift": 110, "Barbell Row": 55, "Overhead Press": 40, "Pull-Up": 0}
_FOODS = ("Oat porridge", "Lentil soup", "Grilled salmon", "Cheese omelette", "Greek yogurt", "Chicken curry", "Plum")
_MAKE_TABLES = "from bodylog.store import Store; Store('log.db').close()"


def _program(name: str) -> str:
    return str(environment("bodylog-mcp", "bodylog==0.1.0") / name)


def make_log(where: Path, seed: int) -> Path:
    """Makes the directory.

    Args:
        where: An empty directory.
        seed: Seed of the weights and the meals.
    """
    rng, root = random.Random(f"bodylog-{seed}"), where / "log"
    root.mkdir()
    subprocess.run([_program("python"), "-c", _MAKE_TABLES], cwd=root, check=True)
    with sqlite3.connect(root / "log.db") as opened:
        keys = [(at + 1, name, name.lower().replace("-", " ")) for at, name in enumerate(_LIFTS)]
        opened.executemany("INSERT INTO exercises VALUES (?, ?, ?)", keys)
        opened.executemany("INSERT INTO goals VALUES (?, ?)", [("kcal", 2400), ("protein", 120)])
        for at in range(12):
            begin = datetime(2026, 10, 5, 18) + timedelta(days=2 * at + at // 3)
            end = begin + timedelta(hours=1)
            row = (at + 1, rng.choice(("Push", "Pull", "Legs")), f"{begin}+00:00", f"{end}+00:00")
            opened.execute("INSERT INTO sessions VALUES (?, ?, ?, ?, 3600, NULL, NULL)", row)
            for number, lift in enumerate(rng.sample(keys, 3) * 2):
                row = (at + 1, lift[0], _LIFTS[lift[1]] + 2.5 * rng.randrange(8), rng.randrange(3, 13))
                time = f"{begin + timedelta(minutes=5 * number)}+00:00"
                values = "(session_id, exercise_id, weight, reps, logged_at) VALUES (?, ?, ?, ?, ?)"
                opened.execute(f"INSERT INTO sets {values}", (*row, time))
            for meal in ("breakfast", "lunch", "dinner"):
                food, grams = rng.choice(_FOODS), 10 * rng.randrange(8, 40)
                eaten = (f"{begin}+00:00", f"{begin:%Y-%m-%d}", meal, food, food)
                row = (*eaten, grams, 2 * grams, grams // 9, grams // 5)
                names = "(eaten_at, day, meal, said, name, grams, kcal, protein, carbs, fat, status)"
                opened.execute(f"INSERT INTO food_log {names} VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 8, 'manual')", row)
    return root


_ENV = {"HOME": "{world}", "BODYLOG_DB": "{world}/log.db", "BODYLOG_CARDS": "{world}/cards", "BODYLOG_OFFLINE": "1"}
SERVER = BenchmarkServer("bodylog", lambda: [_program("bodylog-mcp")], make_log, _ENV, use="seen")
