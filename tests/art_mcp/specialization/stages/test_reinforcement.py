"""When a training ends, and how its learning rate falls."""

from __future__ import annotations

from typing import Any

import pytest

from art_langgraph import GRPOConfig, TrainerClient
from art_langgraph.loop.watch.record import StepRecord
from art_mcp import MCPScenario, RunSettings, TrainingSettings
from art_mcp.scenarios.plan import Plan, Step
from art_mcp.specialization.stages.reinforcement import TrainingTime, falling, nothing_left, reinforce
from trainer_server.wire import StepResult


def record(step: int, elapsed: float, **metrics: Any) -> StepRecord:
    return StepRecord(step, StepResult(version=step, metrics=metrics), elapsed=elapsed)


def test_a_training_ends_when_another_step_would_not_fit() -> None:
    history = [record(1, 90.0), record(2, 120.0), record(3, 150.0), record(4, 180.0)]
    assert TrainingTime(1_000.0, 0.0, 10_000).is_over(history) is None
    why = TrainingTime(29.0, 0.0, 10_000).is_over(history)
    assert why is not None
    assert why.endswith("a step takes 30 s"), "the last steps tell, not the first"
    assert TrainingTime(None, 0.0, 8).is_over(history) is None


def test_a_training_ends_when_there_is_nothing_to_learn() -> None:
    dead = [record(step, 1.0, skipped="all rewards are equal") for step in range(1, 4)]
    assert nothing_left(dead) == "3 steps in a row had nothing to learn from: all rewards are equal"
    assert nothing_left(dead[:2]) is None
    assert nothing_left([*dead, record(4, 1.0)]) is None


def test_the_learning_rate_falls_with_the_time_or_with_the_steps() -> None:
    settings = TrainingSettings(lr=0.4)
    by_steps = falling(settings, TrainingTime(None, 0.0, 4))
    assert [by_steps(step).lr for step in (1, 3, 5)] == pytest.approx([0.4, 0.2, 0.04])
    resumed = falling(settings, TrainingTime(100.0, 300.0, 10_000))
    assert resumed(40).lr == pytest.approx(0.1, rel=0.01), "three quarters of the time had passed before"
    mine = GRPOConfig(lr=1e-5)
    assert falling(TrainingSettings(config=mine), TrainingTime(None, 0.0, 4))(3) is mine
    given = TrainingSettings(config=lambda step: GRPOConfig(lr=step))
    assert falling(given, TrainingTime(None, 0.0, 4))(3).lr == 3


async def test_training_runs_have_the_time_limit_of_all_runs() -> None:
    scenarios = [MCPScenario.make("look", Plan(reference=[Step(tool="look")]))]
    async with TrainerClient("http://127.0.0.1:1", "key") as client:
        begun: Any = reinforce(
            lambda scenario: None,
            scenarios,
            policy="p",
            client=client,
            training=TrainingSettings(steps=1),
            runs=RunSettings(timeout=7.0),
            schemas={},
            seconds=None,
        )
        assert begun.ag_frame.f_locals["timeout"] == 7.0
        await begun.aclose()
