"""mcp-personal-assistant on a home directory with its database: projects, reminders and appointments of a vet."""

from __future__ import annotations

import json
import random
import sqlite3
import uuid
from datetime import datetime, timedelta
from pathlib import Path

from benchmarks.servers.server import BenchmarkServer, pypi
from benchmarks.servers.words import PEOPLE

_PROJECTS = ("New waiting room", "Website", "Vaccination week", "Laboratory", "Stable visits", "Heating")
_TODOS = (
    "Order bandages", "Call the landlord", "Renew the licence", "Clean the cages", "Pay the laboratory",
    "Check the scales", "Write to the mayor", "Buy hay", "Sharpen the clippers", "Repair the door",
)  # fmt: skip
_EVENTS = ("Operation of Bello", "Staff meeting", "Horse of the Knuths", "Course on rabbits", "Tax adviser", "Dentist")
_PRIORITIES = ("low", "medium", "high", "urgent")
_DAY = datetime(2026, 11, 23, 9)


def make_home(where: Path, seed: int) -> Path:
    """Makes the directory.

    Args:
        where: An empty directory.
        seed: Seed of states, days and people.
    """
    rng, root = random.Random(f"vet-{seed}"), where / "home"
    folder = root / ".config" / "mcp-pa"
    folder.mkdir(parents=True)
    rows: list[tuple[str, dict[str, object]]] = []
    for name in _PROJECTS:
        status = rng.choice(("not_started", "in_progress", "on_hold", "completed"))
        rows.append(("projects", {"name": name, "status": status, "priority": rng.choice(_PRIORITIES)}))
    for title in _TODOS:
        due, done = str(_DAY + timedelta(days=rng.randrange(1, 40))), rng.random() < 0.3
        rows.append(
            ("todos", {"title": title, "due_date": due, "completed": done, "priority": rng.choice(_PRIORITIES)})
        )
    for title in _EVENTS:
        begin, guest = _DAY + timedelta(days=rng.randrange(30), hours=rng.randrange(9)), " ".join(rng.choice(PEOPLE))
        event = {"title": title, "start_time": str(begin), "end_time": str(begin + timedelta(hours=1))}
        rows.append(("calendar_events", {**event, "location": rng.choice(("Room 1", "Room 2")), "attendees": [guest]}))
    with sqlite3.connect(folder / "database.sqlite") as opened:
        for table in ("projects", "todos", "calendar_events"):
            opened.execute(f"CREATE TABLE {table} (id TEXT PRIMARY KEY, data TEXT NOT NULL)")
        for table, values in rows:
            entry = {"id": str(uuid.UUID(int=rng.getrandbits(128), version=4)), "created_at": str(_DAY), **values}
            opened.execute(f"INSERT INTO {table} VALUES (?, ?)", (entry["id"], json.dumps(entry)))
    return root


_COMMAND = ("mcp-personal-assistant", "mcp-personal-assistant==0.2.2", "mcp<2")
SERVER = BenchmarkServer("personal-assistant", lambda: [pypi(*_COMMAND)], make_home, {"HOME": "{world}"}, use="seen")
