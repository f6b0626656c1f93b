"""A home that an earlier release made opens, with all that is in it; one of a newer release is refused, untouched."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from art_langgraph.auto_pilot.state_store import StateStore
from art_langgraph.store import TrajectoryStore
from tests.support.homes.released import FIRST, load
from tests.support.homes.versions import publish
from trainer_server.common import Home
from trainer_server.ledger.canary_assignments import CanaryAssignments
from trainer_server.ledger.rollouts import RolloutRepository
from trainer_server.ledger.run_list import RunFilter, RunList
from trainer_server.ledger.run_repository import RunRepository
from trainer_server.ledger.sqlite import SQLiteBooks, SQLiteLedger
from trainer_server.policies.store import VERSION_FILE, AdapterStore
from trainer_server.wire import CompletionStatus, NewerSchema

OPENERS: dict[str, Callable[[Home], object]] = {
    "ledger.sqlite": lambda home: SQLiteLedger(home.ledger),
    "rollouts.sqlite": lambda home: SQLiteBooks(home.rollouts),
    "trajectories.sqlite": lambda home: TrajectoryStore(home.store),
}


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path)
    load(FIRST, home)
    return home


async def test_completions_of_the_first_release_are_read_and_kept(home: Home) -> None:
    ledger = SQLiteLedger(home.ledger)
    ids = [f"chatcmpl-{number}" for number in (1, 2, 3)]
    found = ledger.read(ids)
    assert [found[one].status for one in ids] == ["complete", "aborted", "complete"]
    assert found[ids[0]].token_ids == [3, 4]
    assert found[ids[0]].request == {"messages": [{"role": "user", "content": "say a"}]}
    assert found[ids[0]].message == {"content": "a \ud83d"}
    assert [one.id for one in ledger.rollout("ro-1")] == ids[:2]
    assert ledger.sampled_versions(ids) == {("agent", 1)}
    assert ledger.matching(policy="agent") == dict.fromkeys(ids[:2], "ro-1")
    await ledger.add(found[ids[2]].model_copy(update={"id": "chatcmpl-4", "status": CompletionStatus.failed}))
    assert [one.status for one in ledger.recorded(0, 9)] == ["complete", "aborted", "complete", "failed"]
    ledger.close()


def test_runs_of_the_first_release_are_in_the_list_with_their_rewards(home: Home) -> None:
    books = SQLiteBooks(home.rollouts)
    rollouts, runs = RolloutRepository(books), RunRepository(books)
    spec, run = rollouts.spec("ro-1"), RunList(runs).run("ro-1")
    assert spec is not None
    assert spec.temperature == 1.0
    assert [one.reward for one in rollouts.rewards("ro-1")] == [0.25]
    assert run is not None
    assert (run.scenario, run.reward, run.calls, run.policy, run.version) == ("s", 0.25, 2, "agent", 1)
    assert [one.id for one in RunList(runs).page(RunFilter(search="say")).runs] == ["ro-1"]
    assert runs.find_trace("ro-1") is not None
    assert RunList(runs).steps(run.number) == [("job-1", "tr-1", 0.25)]
    assert CanaryAssignments(books).version("agent", "ro-1") == 1


def test_trajectories_and_the_autopilot_of_the_first_release_are_read(home: Home) -> None:
    store = TrajectoryStore(home.store)
    first = store.get("tr-1")
    assert first is not None
    assert (first.reward, first.metrics, first.completions[0].id) == (0.5, {"right": 1.0}, "chatcmpl-1")
    assert [run.id for run in store.list(thread="t")] == ["tr-2", "tr-1"]
    assert [run.completions[0].id for run in store.unfinished()] == ["chatcmpl-3"]
    assert store.trained("agent") == {"tr-1"}
    assert store.evaluations("held out") == {1: ["tr-2"]}
    pilot = StateStore(store, "agent")
    assert pilot.state() is not None
    assert [entry.event for entry in pilot.history()] == ["started"]


def test_versions_of_the_first_release_are_served_and_followed(home: Home) -> None:
    store = AdapterStore(home.policies)
    assert store.names() == ["agent"]
    assert (store.versions("agent"), store.promoted_version("agent")) == ([0, 1], 1)
    version = store.version("agent", 1)
    assert version is not None
    assert (version.job_id, version.metrics, version.score) == ("job-1", {"loss": 0.5}, 0.75)
    assert store.broken_newest("agent") == {}
    publish(store, "agent", store.next_number("agent"))
    assert store.newest("agent") == 2


def test_a_ledger_of_the_first_release_gets_the_index_that_it_lacked(home: Home) -> None:
    query = "EXPLAIN QUERY PLAN SELECT id, rollout FROM completions WHERE policy = 'agent'"
    plans = []
    for _ in range(2):
        with closing(sqlite3.connect(home.ledger)) as db:
            plans.append(db.execute(query).fetchone()[-1])
        SQLiteLedger(home.ledger)
    assert plans[0].startswith("SCAN")
    assert "completions_policy" in plans[1]


@pytest.mark.parametrize("name", list(OPENERS))
def test_a_database_of_a_newer_release_is_refused(home: Home, name: str) -> None:
    OPENERS[name](home)
    with closing(sqlite3.connect(home.root / name)) as db:
        (known,) = db.execute("PRAGMA user_version").fetchone()
        assert known >= 1
        db.execute(f"PRAGMA user_version = {known + 1}")
    with pytest.raises(NewerSchema, match=f"{name} has schema {known + 1}, .* up to {known}"):
        OPENERS[name](home)


def test_a_version_of_a_newer_release_is_refused_and_not_quarantined(home: Home) -> None:
    """A policy would go on from the version before it."""
    path = home.policies / "agent" / "versions" / "1" / "version.json"
    newer = VERSION_FILE.number + 1
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema": newer, "unheard of": 1}))
    store = AdapterStore(home.policies)
    for look in (lambda: store.version("agent", 1), lambda: store.broken_newest("agent")):
        with pytest.raises(NewerSchema, match=rf"version.json has schema {newer}"):
            look()
    assert store.quarantine_reasons("agent") == {}
