"""agent-toolkit-mcp-server on the notes, to-dos, projects and templates of somebody who looks after allotments."""

from __future__ import annotations

import json
import random
import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

from benchmarks.servers.server import BenchmarkServer, pypi

_NOTES = {
    "compost": ("Compost", "Turn it every second week.", {"Heaps": "Three by the fence.", "Mix": "Leaves, straw."}),
    "bee-hives": ("Bee hives", "Two hives behind the shed.", {"Inspection": "Each Saturday.", "Honey": "14 jars."}),
    "seed-swap": ("Seed swap", "It is held in the barn.", {"Tables": "Nine tables.", "Guests": "About 60 people."}),
    "water-tanks": ("Water tanks", "The pump leaks.", {"Levels": "North: half full.", "Repairs": "New valve."}),
    "roses": ("Roses", "Prune in March.", {"Varieties": "Climbing and shrub roses."}),
    "open-day": ("Open day", "Visitors come from ten to four.", {"Tasks": "Signs, benches, tea."}),
}
_TODOS = (
    "Order bean poles", "Mend the greenhouse door", "Paint the signs", "Collect the fees", "Sharpen the mower",
    "Plant the leeks", "Invite the school", "Empty the rain barrels", "Repair the gate", "Label the seed packets",
    "Book the chipper", "Clean the tool shed",
)  # fmt: skip
_PROJECTS = {"allotments": "Twelve plots on the hill", "orchard": "Apples and plums", "festival": "Harvest festival"}
_TAGS = ("tools", "plants", "people", "water", "urgent")
_TEMPLATES = {
    "reminder": "Dear {name}, please remember {task} by {day}.",
    "welcome": "Welcome to plot {plot}, {name}!",
    "invoice": "Your fee for {year} is {amount}.",
}
_TABLES = """
CREATE TABLE schema_version (version INTEGER PRIMARY KEY);
CREATE TABLE projects (name TEXT PRIMARY KEY, path TEXT NOT NULL, description TEXT NOT NULL DEFAULT '',
    tags TEXT NOT NULL DEFAULT '[]', members TEXT NOT NULL DEFAULT '[]', created TEXT NOT NULL, updated TEXT NOT NULL);
CREATE TABLE todos (id TEXT PRIMARY KEY, text TEXT NOT NULL, status TEXT NOT NULL DEFAULT 'open',
    project TEXT NOT NULL DEFAULT '_global', tags TEXT NOT NULL DEFAULT '[]', blockers TEXT NOT NULL DEFAULT '[]',
    notes TEXT NOT NULL DEFAULT '', locked INTEGER NOT NULL DEFAULT 0, created TEXT NOT NULL, updated TEXT NOT NULL,
    completed TEXT);
CREATE TABLE todo_comments (id TEXT PRIMARY KEY, todo_id TEXT NOT NULL, body TEXT NOT NULL, created TEXT NOT NULL,
    updated TEXT NOT NULL);
CREATE TABLE prompt_templates (id TEXT PRIMARY KEY, name TEXT NOT NULL UNIQUE, description TEXT NOT NULL DEFAULT '',
    template TEXT NOT NULL, variables TEXT NOT NULL DEFAULT '[]', tags TEXT NOT NULL DEFAULT '[]',
    created TEXT NOT NULL, updated TEXT NOT NULL);
CREATE TABLE timers (id TEXT PRIMARY KEY, name TEXT NOT NULL, fire_at TEXT NOT NULL, recurring_seconds INTEGER,
    message TEXT NOT NULL DEFAULT '', paused INTEGER NOT NULL DEFAULT 0, created TEXT NOT NULL);
"""


def make_toolkit(where: Path, seed: int) -> Path:
    """Makes the directory.

    Args:
        where: An empty directory.
        seed: Seed of tags, projects, ids and times.

    Returns:
        The directory.
    """
    rng, root = random.Random(f"toolkit-{seed}"), where / "toolkit"
    at = datetime(2026, 2, 3, 8, tzinfo=UTC)

    def moment() -> str:
        nonlocal at
        at += timedelta(minutes=rng.randrange(30, 3_000))
        return at.isoformat()

    def new_id() -> str:
        return f"{rng.getrandbits(128):032x}"

    for name, (title, text, sections) in _NOTES.items():
        scope = root / "notes" / rng.choice(("_global", "_global", *_PROJECTS))
        scope.mkdir(parents=True, exist_ok=True)
        head = f"---\ntags: [{', '.join(rng.sample(_TAGS, 2))}]\nrevision: {rng.randrange(1, 6)}\narchived: false\n"
        head += f'created: "{moment()}"\nupdated: "{moment()}"\n---\n'
        body = "".join(f"\n## {heading}\n\n{inside}\n" for heading, inside in sections.items())
        (scope / f"{name}.md").write_text(f"{head}# {title}\n\n{text}\n{body}")
    with closing(sqlite3.connect(root / "data.db")) as database, database:
        database.executescript(_TABLES)
        database.execute("INSERT INTO schema_version VALUES (2)")
        for name, about in _PROJECTS.items():
            tags, members = (json.dumps(part) for part in (rng.sample(_TAGS, 2), []))
            row = (name, f"/srv/{name}", about, tags, members, moment(), moment())
            database.execute("INSERT INTO projects VALUES (?, ?, ?, ?, ?, ?, ?)", row)
        for text in _TODOS:
            own, tags, project = new_id(), json.dumps(rng.sample(_TAGS, rng.randrange(3))), rng.choice(list(_PROJECTS))
            status, date = rng.choice(("open", "open", "in_progress", "done")), moment()
            done = moment() if status == "done" else None
            row = (own, text, status, rng.choice(("_global", project)), tags, "[]", "", 0, date, date, done)
            database.execute(f"INSERT INTO todos VALUES ({', '.join('?' * len(row))})", row)
            if rng.random() < 0.5:
                body = rng.choice(("Ask the committee first", "Half of it is done", "Needs a dry day"))
                database.execute("INSERT INTO todo_comments VALUES (?, ?, ?, ?, ?)", (new_id(), own, body, date, date))
        for name, text in _TEMPLATES.items():
            variables = json.dumps([part.partition("}")[0] for part in text.split("{")[1:]])
            row = (new_id(), name, f"For a {name}", text, variables, "[]", moment(), moment())
            database.execute("INSERT INTO prompt_templates VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
    return root


SERVER = BenchmarkServer(
    "agent-toolkit-mcp-server",
    lambda: [pypi("agent-toolkit-mcp-server", "agent-toolkit-mcp-server==0.4.0", "mcp<2")],
    make_toolkit,
    {"HOME": "{world}", "AGENT_TOOLKIT_HOME": "{world}"},
    use="seen",
)
