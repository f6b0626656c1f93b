"""Homes as releases left them: SQL and JSON in `tests/support/homes/old_homes/RELEASE`, for tests that open them.

    python -m tests.support.homes.released tests/support/homes/old_homes/0.2.0

writes the home of a release that changes what is on disk: run it before the change. What it wrote never changes again.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from art_langgraph import Scenario, Trajectory
from art_langgraph.auto_pilot.state import Entry, State
from art_langgraph.auto_pilot.state_store import StateStore
from art_langgraph.store import TrajectoryStore
from art_langgraph.trajectory import CompletionCall
from tests.support.homes.ledger_rows import row
from tests.support.homes.versions import publish
from trainer_server.common import Home
from trainer_server.ledger.canary_assignments import CanaryAssignments
from trainer_server.ledger.rollouts import RolloutRepository
from trainer_server.ledger.run_repository import RunRepository, SentReference
from trainer_server.ledger.sqlite import SQLiteBooks, SQLiteLedger
from trainer_server.policies.store import AdapterStore
from trainer_server.wire import Candidate, CompletionStatus, PolicySpec, Reward, RolloutScenario, RolloutSpec, RunTrace

FIRST = Path(__file__).parent / "old_homes" / "0.1.0"
"""The home of the first release. Its files have no schema numbers."""
_SEARCH = re.compile(r"PRAGMA writable_schema|INSERT INTO sqlite_master|(CREATE TABLE|INSERT INTO) ['\"]run_texts")


def fill(home: Home) -> None:
    """Makes a home of small things, one of each kind, as the code of today writes them."""
    asyncio.run(_add_completions(home))
    _add_runs(home)
    store = TrajectoryStore(home.store)
    for number in (1, 2):
        call = CompletionCall(
            id=f"chatcmpl-{number}", model="agent", version=1, message={"content": "a"}, started=10.0 * number
        )
        scenario = Scenario(id="s", input="say a")
        store.add(
            Trajectory(
                id=f"tr-{number}", scenario=scenario, completions=[call], thread_id="t", started=10.0 * number
            )
        )  # fmt: skip
    store.score("tr-1", 0.5, {"right": 1.0})
    store.begin_step("agent", "step-1", ["tr-1"])
    store.end_step("agent", "step-1", 1)
    store.add_evaluation("held out", 1, ["tr-2"])
    with store.session() as session, session.batch() as batch:
        batch.begin(Trajectory(id="tr-begun", scenario=Scenario(id="s", input="say b"), started=30.0))
        batch.completion("tr-begun", CompletionCall(id="chatcmpl-3", model="agent", version=1, started=30.0))
    pilot = StateStore(store, "agent")
    pilot.write(State(policy="agent", created=1.0), Entry(time=2.0, policy="agent", event="started", reason="asked"))
    policies = AdapterStore(home.policies)
    policies.register(PolicySpec(name="agent"), "base")
    for number in (0, 1):
        publish(policies, "agent", number, job_id=f"job-{number}", metrics={"loss": 0.5})
    policies.score("agent", 1, 0.75)
    policies.promote("agent", 1)


async def _add_completions(home: Home) -> None:
    ledger = SQLiteLedger(home.ledger)
    first, second, third = (row(f"chatcmpl-{number}", 10.0 * number) for number in (1, 2, 3))
    asked = {"messages": [{"role": "user", "content": "say a"}]}
    await ledger.add(
        first.model_copy(update={"rollout": "ro-1", "request": asked, "message": {"content": "a \ud83d"}}),
        second.model_copy(update={"rollout": "ro-1", "status": CompletionStatus.aborted}),
        third.model_copy(update={"policy": None, "version": None}),
    )
    ledger.close()


def _add_runs(home: Home) -> None:
    books = SQLiteBooks(home.rollouts)
    rollouts, runs, draws = RolloutRepository(books), RunRepository(books), CanaryAssignments(books)
    ledger = SQLiteLedger(home.ledger)
    scenario = RolloutScenario(id="s", input="say a")
    rollouts.register("ro-1", RolloutSpec(scenario=scenario, temperature=1.0))
    rollouts.reward("ro-1", Reward(reward=0.25, source="person"), ["agent"])
    runs.trace("ro-1", RunTrace(id="tr-1", scenario=scenario, started=10.0), "a")
    runs.follow(ledger.recorded(0, 10))
    runs.step("job-1", "agent", [SentReference("ro-1", "tr-1", 0.25)])
    trial = Candidate(version=1, share=0.5, since=5.0, beside=0, promotions=0)
    draws.draw("agent", "ro-1", trial, lambda drawn, taken: True)


def dump(home: Home, directory: Path) -> None:
    """Writes a home as text: its databases as SQL, and the JSON files of its policies. Weights are left out."""
    directory.mkdir(parents=True)
    for path in sorted(home.root.glob("*.sqlite")):
        with closing(sqlite3.connect(path)) as db:
            (number,) = db.execute("PRAGMA user_version").fetchone()
            lines = [line for line in db.iterdump() if not _SEARCH.match(line)]
            lines += [*_search(db), f"PRAGMA user_version = {number};"]
        (directory / f"{path.name}.sql").write_text("\n".join(lines) + "\n", encoding="utf-8")
    for path in sorted(home.policies.rglob("*.json")):
        target = directory / path.relative_to(home.root)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)


def _search(db: sqlite3.Connection) -> Iterator[str]:
    """The words to search by. SQLite keeps them in tables of its own, which only its extension can make."""
    for name, made in db.execute("SELECT name, sql FROM sqlite_master WHERE sql LIKE 'CREATE VIRTUAL%'").fetchall():
        yield f"{made};"
        for number, text in db.execute(f"SELECT rowid, quote(text) FROM {name}"):
            yield f"INSERT INTO {name} (rowid, text) VALUES ({number}, {text});"


def load(directory: Path, home: Home) -> None:
    """Makes the home that `dump` wrote, with small weights."""
    for path in directory.glob("*.sql"):
        with closing(sqlite3.connect(home.root / path.stem)) as db:
            db.executescript(path.read_text(encoding="utf-8"))
    shutil.copytree(directory / "policies", home.policies)
    for path in home.policies.rglob("version.json"):
        save_file({"lora_A": np.ones((2, 2), np.float32)}, path.with_name("adapter_model.safetensors"))


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        home = Home(Path(scratch))
        fill(home)
        dump(home, Path(sys.argv[1]))


if __name__ == "__main__":
    main()
