"""The numbers of a step's report, and the ids of trainings."""

from __future__ import annotations

from trainer_server.tracking import numbers
from trainer_server.tracking.base import run_id


def test_numbers_are_found_by_their_path() -> None:
    report = {
        "step": 3,
        "reward": 0.5,
        "skipped": None,
        "alarms": [{"name": "entropy"}],
        "evaluation": {"success": 1, "interval": [0.1, 0.2]},
        "metrics": {"kl": float("nan"), "gap": float("inf"), "on": True, "job": {"seconds": {"train": 2.5}}},
    }
    expected = {"step": 3.0, "reward": 0.5, "evaluation/success": 1.0, "metrics/on": 1.0}
    assert numbers(report) == {**expected, "metrics/job/seconds/train": 2.5}


def test_an_id_is_the_same_for_the_same_training_alone() -> None:
    assert run_id("my agent", "first", 5.0) == run_id("my agent", "first", 5.0)
    assert len({run_id("a", "first", 5.0), run_id("a", "second", 5.0), run_id("a", "first", 6.0)}) == 3
    assert run_id("my/agent" * 20, "x").startswith("my-agent")
    assert len(run_id("my/agent" * 20, "x")) <= 64
