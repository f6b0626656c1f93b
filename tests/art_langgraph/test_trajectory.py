"""Trajectories and scenarios: what they are known by."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from art_langgraph import Scenario, Trajectory, TrajectoryGroup
from art_langgraph.trajectory import CompletionCall, scenario_id


def test_scenarios_that_differ_in_metadata_are_different() -> None:
    seeds = [Scenario(input="play", metadata={"seed": seed}) for seed in (1, 1, 2)]
    assert seeds[0].id == seeds[1].id != seeds[2].id
    runs = [Trajectory(scenario=scenario) for scenario in seeds]
    assert [len(group.trajectories) for group in TrajectoryGroup.by_scenario(runs)] == [2, 1]
    assert Scenario(input="play").id == scenario_id("play") != seeds[0].id
    assert Scenario(input="play", metadata={"a": 1, "b": 2}).id == Scenario(input="play", metadata={"b": 2, "a": 1}).id
    assert Scenario(id="mine", input="play", metadata={"seed": 1}).id == "mine"


_ID = """
from art_langgraph import Scenario
def check(run): return 1.0
print(Scenario(input="x", metadata={"words": set("abcdefgh"), "check": check, "half": "\\ud83d"}).id)
"""


def test_an_id_is_the_same_in_every_process() -> None:
    def id_with(seed: str) -> str:
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        return subprocess.run([sys.executable, "-c", _ID], capture_output=True, text=True, env=environment).stdout

    assert id_with("1") == id_with("2") != ""


@pytest.mark.parametrize(("reward", "own", "scored"), [(0.0, None, True), (None, 0.0, True), (None, None, False)])
def test_a_run_is_scored_by_its_reward_or_that_of_a_completion(
    reward: float | None, own: float | None, scored: bool
) -> None:
    call = CompletionCall(id="a", started=0, reward=own)
    assert Trajectory(scenario=Scenario(input="x"), reward=reward, completions=[call]).scored is scored
