"""What a recipe notes of its stages, so that a later process knows of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from art_langgraph.loop.evaluate import Evaluation
from art_langgraph.loop.failures import RolloutsFailed
from art_langgraph.loop.watch.record import StepRecord
from art_langgraph.trajectory import CompletionCall, Trajectory
from art_mcp import MCPScenario, RunSettings, ScenarioSet, TrainingSettings, WarmStart
from art_mcp.scenarios.plan import Observation, Plan, Step
from art_mcp.specialization import recipe as recipes
from art_mcp.specialization.budget import Budget
from art_mcp.specialization.measuring.measurement import Measurement
from art_mcp.specialization.output.directory import RunDirectory
from art_mcp.specialization.recipe import Recipe
from art_mcp.specialization.specialization import Specialization
from art_mcp.specialization.stage_runner import StageRunner
from art_mcp.specialization.verify import solved
from trainer_server.wire import JobStatus, StepResult


class Killed(Exception):
    """The process ends here."""


class Trainer:
    """A trainer server that has a job, or kills those who send it a new one."""

    def __init__(self, job: Any = None, imitated: Sequence[int] = ()) -> None:
        self.job = job
        self.imitated = imitated

    async def find_step(self, *_: Any) -> Any:
        return self.job

    async def sft(self, *_: Any, **__: Any) -> StepResult:
        raise Killed

    async def result(self, *_: Any, **__: Any) -> StepResult:
        return StepResult(version=1, metrics={"updates": 3, "imitated": self.imitated})

    async def policy(self, *_: Any) -> Any:
        return SimpleNamespace(latest=1)


def scenario(number: int) -> MCPScenario:
    plan = Plan(reference=[Step(tool=f"look{number}")], observations=[Observation(text="seen " * 1_000)])
    return MCPScenario.make(f"Look at {number}.", plan)


def begun(output: Path, trainer: Trainer, spent: float = 0.0, cost: float | None = None) -> Recipe:
    """The recipe of a process that goes on in a directory after seconds that earlier ones have spent. cost: seconds of
    a measured run."""
    directory = RunDirectory(output, {}, resume=spent > 0)
    stage_runner = StageRunner(directory, Budget(3_600.0, earlier_seconds=spent), lambda line: None, lambda: None)
    made = Specialization(
        server="s",
        server_version="",
        policy="p",
        base_model="m",
        scenarios=ScenarioSet([scenario(number) for number in range(24)]),
        notes=stage_runner.notes,
    )
    parts: dict[str, Any] = {"trainer": trainer, "agent": None, "box": SimpleNamespace(tools=[])}
    parts["measured_stages"] = SimpleNamespace(measurer=SimpleNamespace(cost=cost))
    return Recipe(
        outcome=made,
        stage_runner=stage_runner,
        own_agent=False,
        training=TrainingSettings(groups_per_step=2),
        runs=RunSettings(),
        ruler=None,
        seed=0,
        progress=False,
        **parts,
    )


async def test_the_scenarios_of_a_warm_start_that_a_killed_process_sent_are_known(tmp_path: Path) -> None:
    first = begun(tmp_path, Trainer())
    with pytest.raises(Killed):
        await first.warm_start(WarmStart())
    first.stage_runner.directory.close()
    later = begun(tmp_path, Trainer(SimpleNamespace(status=JobStatus.succeeded), imitated=[0, 2, 5]), spent=3_550.0)
    await later.warm_start(WarmStart())
    ended = later.stage_runner.directory.journal.end_event("warm start")
    later.stage_runner.directory.close()
    assert ended is not None
    assert len(set(ended["scenarios"])) == 3
    assert set(ended["scenarios"]) < {scenario.id for scenario in later.outcome.scenarios.train}


async def test_a_training_that_failed_is_told_after_a_resume_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def failing(*_: Any, **__: Any) -> AsyncIterator[StepRecord]:
        raise RolloutsFailed("all 4 runs failed", trajectories=[])
        yield

    monkeypatch.setattr(recipes, "reinforce", failing)
    first = begun(tmp_path, Trainer())
    await first.reinforce()
    first.stage_runner.directory.close()
    later = begun(tmp_path, Trainer(), spent=60.0)
    await later.reinforce()
    later.stage_runner.directory.close()
    assert first.outcome.notes == later.outcome.notes == ["the training ended: all 4 runs failed"]


async def test_the_warm_start_gets_the_time_of_too_few_steps(tmp_path: Path) -> None:
    first = begun(tmp_path, Trainer(), cost=5.0)
    first.weigh_training(WarmStart())
    assert first.training.steps == 0
    allowed = first.stage_runner.budget.allows("warm start")
    first.stage_runner.directory.close()
    plenty = begun(tmp_path / "plenty", Trainer(), cost=0.5)
    plenty.weigh_training(WarmStart())
    plenty.stage_runner.directory.close()
    assert plenty.training.steps is None
    less = plenty.stage_runner.budget.allows("warm start")
    assert allowed is not None
    assert less is not None
    assert allowed > 1.3 * less
    later = begun(tmp_path, Trainer(), spent=60.0, cost=0.5)  # what was decided stays decided
    later.weigh_training(WarmStart())
    later.stage_runner.directory.close()
    assert later.training.steps == 0
    assert first.outcome.notes == later.outcome.notes
    assert "fewer than 12" in later.outcome.notes[0]


async def test_steps_take_longer_than_runs_of_a_policy_that_calls_no_tool(tmp_path: Path) -> None:
    recipe = begun(tmp_path, Trainer(), cost=0.5)
    for number, calls in ((0, 1), (1, 4)):
        runs = [Trajectory(scenario=scenario(0), completions=[CompletionCall(id="c", started=0.0)] * calls)]
        recipe.outcome.measurements["before"] = Measurement("before", Evaluation(runs, 0, solved))
        assert recipe._longer() == (2.0 if number == 0 else 1.0)
    recipe.stage_runner.directory.close()


async def test_a_training_that_an_earlier_process_has_planned_is_not_left_out_later(tmp_path: Path) -> None:
    first = begun(tmp_path, Trainer(), cost=0.5)
    first.weigh_training(WarmStart())
    with pytest.raises(Killed):
        await first.warm_start(WarmStart())
    first.stage_runner.directory.close()
    later = begun(tmp_path, Trainer(), spent=3_400.0, cost=0.5)  # too little is left for a dozen steps
    later.weigh_training(WarmStart())
    later.stage_runner.directory.close()
    assert later.training.steps is None


async def test_steps_that_were_asked_for_are_made_however_few_fit(tmp_path: Path) -> None:
    asked = begun(tmp_path, Trainer(), cost=5.0)
    asked.training = TrainingSettings(groups_per_step=2, steps=3)
    asked.weigh_training(WarmStart())
    asked.stage_runner.directory.close()
    assert (asked.training.steps, asked.outcome.notes) == (3, [])


async def test_a_training_without_a_warm_start_is_not_left_out(tmp_path: Path) -> None:
    alone = begun(tmp_path, Trainer(), cost=5.0)
    alone._training = [one.with_plan(observations=[]) for one in alone._training]
    alone.weigh_training(WarmStart())
    alone.stage_runner.directory.close()
    assert alone.training.steps is None
