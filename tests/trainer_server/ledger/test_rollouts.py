"""Registrations and rewards of rollouts survive a crash, and are deleted with their completions."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainer_server.ledger.base import LedgerError
from trainer_server.ledger.books import Books
from trainer_server.ledger.postgres import PostgresBooks
from trainer_server.ledger.rollouts import RolloutRepository
from trainer_server.ledger.sqlite import SQLiteBooks
from trainer_server.wire import Reward, RolloutScenario, RolloutSpec


def test_another_process_reads_what_was_written(books: Books) -> None:
    book, other = RolloutRepository(books), RolloutRepository(books)
    assert book.known_spec("r") == (False, None)
    assert book.spec("r") is None
    book.register("r", RolloutSpec(version={"agent": 3}, temperature=0.5))
    book.reward("r", Reward(reward=1.0), ["agent"])
    book.reward("r", Reward(reward=2.0, scenario=RolloutScenario(id="s"), reason="\ud83d"), ["agent"])
    spec = other.spec("r")
    assert spec is not None
    assert (spec.version, spec.temperature, spec.scenario) == ({"agent": 3}, 0.5, RolloutScenario(id="s"))
    assert [(given.reward, given.reason) for given in other.rewards("r")] == [(1.0, None), (2.0, "\ud83d")]
    (listed,) = other.list_rollouts(after=0, limit=9, policy="agent", rewarded=True)[0]
    assert (listed.id, listed.reward, listed.scenario, listed.policies) == ("r", 2.0, "s", ["agent"])


def test_a_registration_is_read_from_a_database_that_one_server_has_only_once(tmp_path: Path) -> None:
    book = RolloutRepository(SQLiteBooks(tmp_path / "rollouts.sqlite"))
    assert book.spec("r") is None
    assert book.known_spec("r") == (True, None)
    assert (tmp_path / "rollouts.sqlite").stat().st_mode & 0o077 == 0


def test_what_no_request_needs_is_not_kept_in_memory(tmp_path: Path) -> None:
    book = RolloutRepository(SQLiteBooks(tmp_path / "rollouts.sqlite"))
    needs = RolloutSpec(version={"agent": 3}, temperature=0.5, hints={"agent": "be brief"}, evaluation=True)
    scenario = RolloutScenario(id="s", input="x" * 10**6)
    spec = needs.model_copy(update={"scenario": scenario, "metadata": {"k": "y" * 10**6}})
    book.register("r", spec)
    assert book.known_spec("r") == (True, needs)
    assert book.spec("r") == spec
    large = needs.model_copy(update={"hints": {"agent": "z" * 10**6}})
    book.register("r", large)
    assert book.known_spec("r") == (False, None)
    assert book.spec("r") == large


def test_what_another_server_registers_is_seen_at_once(postgres_url: str) -> None:
    one, other = (RolloutRepository(PostgresBooks(postgres_url)) for _ in range(2))
    assert one.spec("r") is None
    other.register("r", RolloutSpec(version=3))
    known, _ = one.known_spec("r")
    assert not known
    assert one.spec("r") == RolloutSpec(version=3)
    one.reward("r", Reward(reward=1.0, scenario=RolloutScenario(id="s")), [])
    spec = other.spec("r")
    assert spec is not None
    assert (spec.version, spec.scenario) == (3, RolloutScenario(id="s"))


def test_old_rollouts_are_deleted(books: Books) -> None:
    book = RolloutRepository(books)
    book.register("r", RolloutSpec(version=1))
    assert book.purge(days=1) == 0
    assert book.purge(days=-1) == 1
    assert book.spec("r") is None
    assert book.rewards("r") == []


def test_the_owner_of_a_rollout_stays_as_long_as_its_run_is_in_the_list(books: Books) -> None:
    book = RolloutRepository(books)
    book.begin(["r"], "alice", ())
    book.register("r", RolloutSpec())
    with books.writing() as db:
        db.execute("UPDATE rollouts SET changed = 0")
    assert book.purge(days=1) == 0
    assert book.owners(["r"]) == {"r": "alice"}
    with books.writing() as db:
        db.execute("UPDATE runs SET changed = 0")
    assert book.purge(days=1) == 1


def test_a_file_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    (tmp_path / "rollouts.sqlite").write_text("no database" * 100)
    with pytest.raises(LedgerError, match=r"rollouts\.sqlite cannot be read or written"):
        SQLiteBooks(tmp_path / "rollouts.sqlite")
