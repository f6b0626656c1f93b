"""When a training ends, and the settings of its steps."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from art_langgraph import GRPOConfig, TrainerClient
from art_langgraph.loop.watch.record import StepRecord
from art_mcp import MCPScenario, RunSettings, TrainingSettings
from art_mcp.scenarios.plan import Plan, Step
from art_mcp.specialization.stages.reinforcement import TrainingTime, nothing_left, reinforce, settings_of
from trainer_server.wire import StepResult


def record(step: int, elapsed: float, **metrics: Any) -> StepRecord:
    return StepRecord(step, StepResult(version=step, metrics=metrics), elapsed=elapsed)


def test_a_training_ends_when_another_step_would_not_fit() -> None:
    history = [record(1, 90.0), record(2, 120.0), record(3, 150.0), record(4, 180.0)]
    assert TrainingTime(1_000.0).is_over(history) is None
    why = TrainingTime(29.0).is_over(history)
    assert why is not None
    assert why.endswith("a step takes 30 s"), "the last steps tell, not the first"
    assert TrainingTime(None).is_over(history) is None


def test_a_training_ends_when_there_is_nothing_to_learn() -> None:
    dead = [record(step, 1.0, skipped="all rewards are equal") for step in range(1, 4)]
    assert nothing_left(dead) == "3 steps in a row had nothing to learn from: all rewards are equal"
    assert nothing_left(dead[:2]) is None
    assert nothing_left([*dead, record(4, 1.0)]) is None


def test_all_steps_have_the_same_settings_unless_others_are_given() -> None:
    config = settings_of(TrainingSettings(lr=0.4))
    assert isinstance(config, GRPOConfig)
    assert (config.lr, config.lr_scheduler_type) == (0.4, GRPOConfig().lr_scheduler_type)
    mine = GRPOConfig(lr=1e-5)
    assert settings_of(TrainingSettings(config=mine)) is mine
    given = TrainingSettings(config=lambda step: GRPOConfig(lr=step))
    assert settings_of(given) is given.config


async def test_training_runs_have_the_time_limit_of_all_runs() -> None:
    scenarios = [MCPScenario.make("look", Plan(reference=[Step(tool="look")]))]
    async with TrainerClient("http://127.0.0.1:1", "key") as client:
        options = SimpleNamespace(
            policy="p", training=TrainingSettings(steps=1), runs=RunSettings(timeout=7.0), seed=0, progress=False
        )
        context: Any = SimpleNamespace(
            options=options,
            trainer=client,
            agent=lambda scenario: None,
            ruler=None,
            selection=[],
            difficulty_groups=(),
            outcome=SimpleNamespace(schemas={}),
            runner=SimpleNamespace(directory=SimpleNamespace(store=None, name="")),
        )
        begun: Any = reinforce(context, scenarios, None, first_step=1)
        assert begun.ag_frame.f_locals["options"].timeout == 7.0
        await begun.aclose()
