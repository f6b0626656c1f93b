"""Registrations and rewards of rollouts survive a crash, and are deleted with their completions."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainer_server.ledger.base import LedgerError
from trainer_server.ledger.rollouts import RolloutBook
from trainer_server.wire import Reward, RolloutScenario, RolloutSpec


def test_another_process_reads_what_was_written(tmp_path: Path) -> None:
    book = RolloutBook(tmp_path / "rollouts.sqlite")
    assert book.known_spec("r") == (False, None)
    assert book.spec("r") is None
    assert book.known_spec("r") == (True, None)
    book.register("r", RolloutSpec(version={"agent": 3}, temperature=0.5))
    book.reward("r", Reward(reward=1.0), ["agent"])
    book.reward("r", Reward(reward=2.0, scenario=RolloutScenario(id="s"), reason="\ud83d"), ["agent"])
    other = RolloutBook(tmp_path / "rollouts.sqlite")
    spec = other.spec("r")
    assert spec is not None
    assert (spec.version, spec.temperature, spec.scenario) == ({"agent": 3}, 0.5, RolloutScenario(id="s"))
    assert [(given.reward, given.reason) for given in other.rewards("r")] == [(1.0, None), (2.0, "\ud83d")]
    (listed,) = other.listed(after=0, limit=9, policy="agent", rewarded=True)[0]
    assert (listed.id, listed.reward, listed.scenario, listed.policies) == ("r", 2.0, "s", ["agent"])
    assert (tmp_path / "rollouts.sqlite").stat().st_mode & 0o077 == 0


def test_old_rollouts_are_deleted(tmp_path: Path) -> None:
    book = RolloutBook(tmp_path / "rollouts.sqlite")
    book.register("r", RolloutSpec(version=1))
    assert book.purge(days=1) == 0
    assert book.purge(days=-1) == 1
    assert book.spec("r") is None
    assert book.rewards("r") == []


def test_a_file_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    (tmp_path / "rollouts.sqlite").write_text("no database" * 100)
    with pytest.raises(LedgerError, match=r"rollouts\.sqlite cannot be read or written"):
        RolloutBook(tmp_path / "rollouts.sqlite")
