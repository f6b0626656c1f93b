"""benchmarks.real_weights: the rows of a curve."""

from __future__ import annotations

import json
from pathlib import Path

from art_langgraph import Evaluation, Scenario, Trajectory
from art_langgraph.loop.watch.record import StepRecord
from benchmarks.real_weights import Curve
from trainer_server.wire import StepResult


def evaluation(*solved: int, version: int) -> Evaluation:
    """Twelve scenarios, of which some are solved."""
    runs = [Trajectory(scenario=Scenario(id=f"{at}", input="x"), reward=float(at in solved)) for at in range(12)]
    return Evaluation(runs, version=version)


def test_a_curve_has_each_measurement_with_its_gain_and_is_kept_as_it_grows(tmp_path: Path) -> None:
    curve = Curve({"task": "sql", "seed": 3}, tmp_path / "curve.json")
    before, after = evaluation(0, version=0), evaluation(*range(1, 8), version=2)
    made = [StepResult(version=number, metrics={"entropy": 1.0 / number}) for number in (1, 2)]
    curve.add(StepRecord(1, made[0], baseline=before))
    assert [(row["step"], row["success"], row["gain"]) for row in curve.rows] == [(0, 1 / 12, None)]
    curve.add(StepRecord(2, made[1], baseline=before, evaluation=after))
    kept = json.loads((tmp_path / "curve.json").read_text())
    assert (kept["task"], kept["seed"], kept["benchmark"]) == ("sql", 3, "real_weights")
    assert [row["metrics"]["entropy"] for row in kept["steps"]] == [1.0, 0.5]
    assert [row["step"] for row in kept["curve"]] == [0, 2]
    measured = kept["curve"][1]
    assert (measured["success"], measured["version"]) == (7 / 12, 2)
    assert (measured["gain"]["better"], measured["gain"]["worse"], measured["gain"]["p"]) == (7, 1, 18 / 256)
