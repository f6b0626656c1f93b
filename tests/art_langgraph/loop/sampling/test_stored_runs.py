"""Runs that were made before the first step."""

from __future__ import annotations

from pathlib import Path

import pytest

from art_langgraph import Scenario, TrajectoryGroup, TrajectoryStore
from art_langgraph.loop.sampling.curriculum import at_temperature, ready_groups, stored_groups
from tests.support.runs.groups import group, run

A, B = Scenario(id="a", input="a"), Scenario(id="b", input="b")


def ready(*groups: TrajectoryGroup, temperature: float | None = 1.0) -> list[str]:
    found = ready_groups(groups, [A, B], policy="agent", version=3, temperature=temperature)
    return [one.scenario.id for one in found]


def test_a_step_takes_informative_groups_of_the_newest_version_only(caplog: pytest.LogCaptureFixture) -> None:
    good = group(A, 0.0, 1.0, version=3)
    assert ready(good) == ["a"]
    assert ready(group(A, 1.0, 1.0, version=3), group(B, 0.0, 1.0, version=2)) == []
    assert ready(group(A, 0.0, 1.0, version=3, evaluation=True)) == []
    assert ready(group(Scenario(id="other", input="c"), 0.0, 1.0, version=3)) == []
    assert "measured runs" not in caplog.text
    assert ready(good, temperature=0.7) == []
    assert "2 of 2 measured runs are at temperature 1.0, not 0.7" in caplog.text


def test_the_store_gives_runs_of_the_policy_at_the_temperature_of_training(tmp_path: Path) -> None:
    store = TrajectoryStore(tmp_path / "runs.sqlite")
    raised = run(A, None, completions=[], error="OSError: before the first call")
    kept = [run(A, 1.0), run(B, 0.0)]
    lost = [
        run(A, 1.0, temperature=1.3), run(A, 1.0, policy="other"), run("elsewhere", 1.0), run(A, 1.0, started=0.5),
    ]  # fmt: skip
    for one in [kept[0], raised, kept[1], *lost]:
        store.add(one)
    groups = stored_groups(store, [A, B], "agent", 1.0, since=0.9)
    assert {one.scenario.id: [made.id for made in one.trajectories] for one in groups} == {
        "a": [kept[0].id, raised.id], "b": [kept[1].id],
    }  # fmt: skip


def test_groups_without_a_run_at_the_temperature_are_left_out() -> None:
    mixed = group(A, 0.0, 1.0)
    mixed.trajectories[0].temperature = 1.3
    hinted = group(B, 1.0, hints={"agent": "It is 42."})
    assert at_temperature([hinted], 1.0) == []
    assert [len(one.trajectories) for one in at_temperature([mixed, group(B, 1.0, temperature=None)], 1.0)] == [1]
