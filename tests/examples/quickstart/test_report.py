"""What a run of the quickstart shows."""

from __future__ import annotations

import io

from art_examples.quickstart.report import show_dead_groups
from rich.console import Console

from art_langgraph import Scenario, Trajectory, TrajectoryGroup


def group(*rewards: float) -> TrajectoryGroup:
    scenario = Scenario(id="warm", input="How warm is it in Oslo?", metadata={"tool": "get_weather"})
    runs = [Trajectory(scenario=scenario, reward=reward) for reward in rewards]
    return TrajectoryGroup(scenario=scenario, trajectories=runs)


def test_scenarios_that_never_taught_anything_are_shown_with_what_to_do() -> None:
    console = Console(file=(shown := io.StringIO()), width=200)
    show_dead_groups(console, [group(0.0, 0.5)])
    assert shown.getvalue() == ""
    show_dead_groups(console, [group(0.0, 0.0)])
    assert "1 of 1 groups taught nothing; 1 of 1 scenarios never taught anything" in shown.getvalue()
    assert "What to do:" in shown.getvalue()
