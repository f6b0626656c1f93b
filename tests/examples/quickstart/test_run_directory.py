"""The directory of a quickstart run: made, resumed, and what it keeps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from art_examples.quickstart import report
from art_examples.quickstart.run_directory import Options, RunDirectory

from art_langgraph import Evaluation, Scenario, StepResult, Trajectory, TrajectoryGroup
from art_langgraph.costs import Cost, Tokens
from art_langgraph.loop.watch.record import StepRecord
from trainer_server.wire import ConfigError


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def record(step: int) -> StepRecord:
    metrics = {"reward_mean": 0.5, "job": {"id": "job-1", "seconds": {}}}
    result = StepResult(policy="cities", version=step, metrics=metrics)
    scenario = Scenario(input="How warm is it in Oslo?", metadata={"tool": "get_weather"})
    group = TrajectoryGroup(scenario=scenario, trajectories=[Trajectory(scenario=scenario, reward=0.5)])
    cost = Cost(runs=1, tokens=Tokens(100, 10), seconds=3.0, gpu_hours=0.5, gpu_usd=1.0)
    return StepRecord(step, result, [group], {"rollout": 2.0, "train": 1.0, "swap": 0.25}, cost=cost)


def test_a_run_is_resumed_by_its_name_or_as_the_latest_with_its_seed() -> None:
    RunDirectory(Options.of("first", 7, False, steps=2))
    for name in ("first", None):
        resumed = Options.of(name, None, True, steps=4)
        assert (resumed.name, resumed.seed, resumed.resume) == ("first", 7, True)
        assert RunDirectory(resumed).path == Path("runs/first")
    with pytest.raises(ConfigError, match="--seed 7"):
        Options.of(None, 8, True, steps=4)


def test_a_run_that_is_resumed_measures_on_the_same_scenarios() -> None:
    RunDirectory(Options.of("first", 0, False, 48, steps=2))
    assert Options.of("first", None, True, steps=2).held_out == 48
    with pytest.raises(ConfigError, match="--held-out 48"):
        Options.of("first", None, True, 200, steps=2)


def test_a_name_that_is_taken_and_nothing_to_resume_are_said() -> None:
    with pytest.raises(ConfigError, match="nothing to resume"):
        Options.of(None, None, True, steps=2)
    RunDirectory(Options.of("first", 0, False, steps=2))
    with pytest.raises(ConfigError, match="--resume, or choose another --name"):
        RunDirectory(Options.of("first", 0, False, steps=2))


def test_steps_and_measurements_are_kept_for_a_resumed_run() -> None:
    directory = RunDirectory(Options.of("first", 0, False, steps=2))
    assert directory.steps() == []
    assert directory.evaluation(0) is None
    rows = [directory.add_step(record(step), {}) for step in (1, 2)]
    directory.save_evaluation(Evaluation(record(1).groups[0].trajectories, version=0), 0)
    resumed = RunDirectory(Options.of(None, None, True, steps=4))
    assert resumed.steps() == rows
    assert (rows[0]["step"], rows[0]["reward"], rows[0]["success"]) == (1, 0.5, 0.0)
    kept = resumed.evaluation(0)
    assert kept is not None
    assert (kept.version, kept.n, kept.success_rate) == (0, 1, 0.0)


def test_the_summary_has_the_promised_form() -> None:
    directory = RunDirectory(Options.of("first", 3, False, steps=2))
    rows = [directory.add_step(record(step), {}) for step in (1, 2)]
    measured = Evaluation([Trajectory(scenario=Scenario(input="x"), reward=1.0)], version=0)
    seconds = {"ready": 10.0, "measuring": 5.0, "total": 60.0}
    directory.write_summary(report.summary(3, rows, measured, measured, seconds))
    summary = json.loads((directory.path / "summary.json").read_text())
    cost = summary.pop("cost")
    assert (cost["runs"], cost["tokens"]["prompt"], cost["usd"]) == (2, 200, 2.0)
    assert (cost["gain"], cost["gain_per_usd"]) == (0.0, 0.0)
    assert summary == {
        "seed": 3,
        "steps": 2,
        "before": {"success": 1.0, "n": 1},
        "after": {"success": 1.0, "n": 1},
        "seconds": {"ready": 10.0, "rollout": 4.0, "train": 2.0, "swap_median": 0.25, "total": 60.0},
    }
    assert report.summary(3, [], measured, None, seconds)["after"] is None
