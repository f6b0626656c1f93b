"""Running jobs by phase, throughput, learning curves."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainer_server.dashboard.curves import beside_numbers, curves, flat
from trainer_server.dashboard.status import running_jobs, throughput
from trainer_server.jobs.job_files import TrainingOutcome
from trainer_server.jobs.queue import JobQueue
from trainer_server.ledger.run_list import Outcome
from trainer_server.wire import PolicySpec, StepResult, Version


def test_a_job_goes_through_its_phases(tmp_path: Path) -> None:
    board = JobQueue(tmp_path / "jobs")
    job = board.accept("create", "agent", spec=PolicySpec(name="agent")).id

    def phase() -> str:
        (one,) = running_jobs(board)
        assert dict(one.phases)[one.phase] == "now"
        return one.phase

    assert phase() == "queued"
    board.start(job)
    assert phase() == "train"
    board.report(job, TrainingOutcome(result=StepResult(version=0)))
    assert phase() == "load"


def test_minutes_without_completions_are_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer_server.dashboard.status.time.time", lambda: 600.0)
    found = throughput([(10, 3, 120, 1)], span=3)
    assert found == {"x": [480, 540, 600], "completions": [0, 0, 3], "tokens": [0, 0, 2], "failed": [0, 0, 1]}


def test_curves_are_of_what_is_known() -> None:
    versions = [Version(policy="a", version=n, created=1, metrics={"loss": n / 2, "by": {"x": n}}) for n in range(2)]
    held_out = [Outcome("a", 1, None, True, 10, 0.5, 0, 1, 5)]
    found = curves(versions, [], held_out)
    assert set(found) == {"held-out success", "loss", "by.x"}
    assert found["loss"] == {"x": [0, 1], "y": [0.0, 0.5]}
    assert found["held-out success"]["low"][0] == pytest.approx(0.2366, abs=1e-4)  # Wilson (1927), 5 of 10
    assert found["held-out success"]["high"][0] == pytest.approx(0.7634, abs=1e-4)


def test_only_numbers_are_drawn() -> None:
    metrics = {"a": 1, "b": True, "c": float("nan"), "d": "x", "e": {"f": 2.0, "g": {"h": 1}}, "i": None}
    assert flat(metrics) == {"a": 1, "e.f": 2.0}


def test_what_is_shown_as_a_number_is_not_shown_again() -> None:
    metrics = {
        "loss": 0.5,
        "groups_skipped_by": {"equal_rewards": 3},
        "turns_skipped": {},
        "job": {"id": "job-1", "seconds": {"train": 2.0}, "tokens": 5},
        "skipped": None,
        "losses": [1.0, 0.5],
    }
    assert flat(metrics) == {"loss": 0.5, "groups_skipped_by.equal_rewards": 3, "job.tokens": 5}
    assert beside_numbers(metrics) == {
        "job": {"id": "job-1", "seconds": {"train": 2.0}},
        "skipped": None,
        "losses": [1.0, 0.5],
    }
