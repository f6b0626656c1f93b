"""What stages note, so that a later process of the run knows of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from art_langgraph.loop.evaluate import Evaluation
from art_langgraph.loop.failures import RolloutsFailed
from art_langgraph.loop.watch.record import StepRecord
from art_langgraph.trajectory import CompletionCall, Trajectory
from art_mcp import GenerationSettings, MCPScenario, RunSettings, ScenarioSet, TrainingSettings
from art_mcp.scenarios.plan import Observation, Plan, Step
from art_mcp.specialization.context import RunContext
from art_mcp.specialization.measurement import Measurement
from art_mcp.specialization.run_directory import RunDirectory
from art_mcp.specialization.settings import SpecializeOptions
from art_mcp.specialization.specialization import Specialization
from art_mcp.specialization.specialize import stages
from art_mcp.specialization.stage_runner import Budget, Stage, StageRunner
from art_mcp.specialization.stages import reinforcement
from art_mcp.specialization.stages.reinforcement import Reinforcement, TimeSplit
from art_mcp.specialization.stages.warm_start import WarmStartStage
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


def begun(output: Path, trainer: Any, spent: float = 0.0, cost: float | None = None, **options: Any) -> RunContext:
    """What the stages share in a process that goes on in a directory after seconds that earlier ones have spent. cost:
    seconds of a measured run."""
    directory = RunDirectory(output, {}, resume=spent > 0)
    runner = StageRunner(directory, Budget(3_600.0, earlier_seconds=spent), lambda line: None, lambda: None)
    every: dict[str, Any] = {"server": "s", "policy": "p", "minutes": 60.0, "scenarios": None, "graph": None,
                             "warm_start": "auto", "generation": GenerationSettings(),
                             "training": TrainingSettings(groups_per_step=2),
                             "runs": RunSettings(), "seed": 0, "output": output, "resume": True, "progress": False,
                             "on_stage": lambda line: None}  # fmt: skip
    parts: dict[str, Any] = {"server": None, "trainer": trainer, "policy": None}
    context = RunContext(options=SpecializeOptions(**{**every, **options}), runner=runner, **parts)
    runner.budget.divide({stage.name: stage.weight for stage in stages(context)})
    context.outcome = Specialization(
        server="s",
        server_version="",
        policy="p",
        base_model="m",
        scenarios=ScenarioSet([scenario(number) for number in range(24)]),
        notes=runner.notes,
    )
    unused: Any = SimpleNamespace(tools=[])
    context.toolbox, context.agent, context.measurer.cost = unused, unused, cost
    context.divide_scenarios()
    return context


async def do(context: RunContext, *kinds: Callable[[RunContext], Stage]) -> None:
    """Does stages as a run does. The others keep their share of the time."""
    for stage in (kind(context) for kind in kinds):
        if end := context.runner.directory.journal.end_event(stage.name):
            await stage.restore(end)
        elif stage.skip_reason() is None:
            await stage.run()


async def test_the_scenarios_of_a_warm_start_that_a_killed_process_sent_are_known(tmp_path: Path) -> None:
    first = begun(tmp_path, Trainer())
    with pytest.raises(Killed):
        await do(first, WarmStartStage)
    first.runner.directory.close()
    later = begun(tmp_path, Trainer(SimpleNamespace(status=JobStatus.succeeded), imitated=[0, 2, 5]), spent=3_550.0)
    await do(later, WarmStartStage)
    ended = later.runner.directory.journal.end_event("warm start")
    later.runner.directory.close()
    assert ended is not None
    assert len(set(ended["scenarios"])) == 3
    assert set(ended["scenarios"]) < {scenario.id for scenario in later.outcome.scenarios.train}


async def test_a_training_that_failed_is_told_after_a_resume_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def failing(*_: Any, **__: Any) -> AsyncIterator[StepRecord]:
        raise RolloutsFailed("all 4 runs failed", trajectories=[])
        yield

    monkeypatch.setattr(reinforcement, "reinforce", failing)
    first = begun(tmp_path, Trainer())
    await do(first, Reinforcement)
    first.runner.directory.close()
    later = begun(tmp_path, Trainer(), spent=60.0)
    await do(later, Reinforcement)
    later.runner.directory.close()
    assert first.outcome.notes == later.outcome.notes == ["the training ended: all 4 runs failed"]


async def test_the_warm_start_gets_the_time_of_too_few_steps(tmp_path: Path) -> None:
    first = begun(tmp_path, Trainer(), cost=5.0)
    await do(first, TimeSplit)
    assert first.options.training.steps == 0
    allowed = first.runner.budget.allows("warm start")
    first.runner.directory.close()
    plenty = begun(tmp_path / "plenty", Trainer(), cost=0.5)
    await do(plenty, TimeSplit)
    plenty.runner.directory.close()
    assert plenty.options.training.steps is None
    less = plenty.runner.budget.allows("warm start")
    assert allowed is not None
    assert less is not None
    assert allowed > 1.3 * less
    later = begun(tmp_path, Trainer(), spent=60.0, cost=0.5)  # what was decided stays decided
    await do(later, TimeSplit)
    later.runner.directory.close()
    assert later.options.training.steps == 0
    assert first.outcome.notes == later.outcome.notes
    assert "fewer than 12" in later.outcome.notes[0]


async def test_steps_take_longer_than_runs_of_a_policy_that_calls_no_tool(tmp_path: Path) -> None:
    context = begun(tmp_path, Trainer(), cost=0.5)
    for number, calls in ((0, 1), (1, 4)):
        runs = [Trajectory(scenario=scenario(0), completions=[CompletionCall(id="c", started=0.0)] * calls)]
        context.outcome.measurements["before"] = Measurement("before", Evaluation(runs, 0, solved))
        assert TimeSplit(context).longer() == (2.0 if number == 0 else 1.0)
    context.runner.directory.close()


async def test_a_training_that_an_earlier_process_has_planned_is_not_left_out_later(tmp_path: Path) -> None:
    first = begun(tmp_path, Trainer(), cost=0.5)
    await do(first, TimeSplit)
    with pytest.raises(Killed):
        await do(first, WarmStartStage)
    first.runner.directory.close()
    later = begun(tmp_path, Trainer(), spent=3_400.0, cost=0.5)  # too little is left for a dozen steps
    await do(later, TimeSplit)
    later.runner.directory.close()
    assert later.options.training.steps is None


async def test_steps_that_were_asked_for_are_made_however_few_fit(tmp_path: Path) -> None:
    asked = begun(tmp_path, Trainer(), cost=5.0, training=TrainingSettings(groups_per_step=2, steps=3))
    await do(asked, TimeSplit)
    asked.runner.directory.close()
    assert (asked.options.training.steps, asked.outcome.notes) == (3, [])


async def test_a_training_without_a_warm_start_is_not_left_out(tmp_path: Path) -> None:
    alone = begun(tmp_path, Trainer(), cost=5.0)
    alone.training = [one.with_plan(observations=[]) for one in alone.training]
    await do(alone, TimeSplit)
    alone.runner.directory.close()
    assert alone.options.training.steps is None


def test_stages_that_the_settings_leave_out_have_no_share_of_the_time(tmp_path: Path) -> None:
    every = begun(tmp_path / "every", None, training=TrainingSettings(groups_per_step=2, difficulty_runs=2))
    every.runner.directory.close()
    names = ["scenarios", "before", "prompted", "time split", "warm start", "after_sft", "difficulty", "rl",
             "selection", "after"]  # fmt: skip
    assert [stage.name for stage in stages(every)] == names
    assert [stage.name for stage in stages(every) if not stage.weight] == ["time split"]
    fewest = begun(tmp_path / "fewest", None, training=TrainingSettings(groups_per_step=2, steps=0, keep_best=False),
                   graph=lambda tools: None)  # fmt: skip
    fewest.runner.directory.close()
    assert [stage.name for stage in stages(fewest) if stage.weight] == ["scenarios", "before", "after"]


async def test_a_stage_is_restored_or_left_out_or_run(tmp_path: Path) -> None:
    calls: list[str] = []

    class Noted(Stage):
        weight = 1.0

        def __init__(self, name: str, why: str | None = None) -> None:
            self.name, self._why = name, why

        def skip_reason(self) -> str | None:
            return self._why

        async def run(self) -> None:
            with context.runner.stage(self.name, "work") as record:
                record.facts["result"] = 1
            calls.append(f"run {self.name}")

        async def skip(self, why: str) -> None:
            calls.append(f"skip {self.name} {why}")

        async def restore(self, end: Mapping[str, Any]) -> None:
            calls.append(f"restore {self.name} {end['result']}")

    context = begun(tmp_path, None)
    for _ in range(2):
        await context.runner.run([Noted("a"), Noted("b", "no time"), Noted("c", "")])
    events = [(line["event"], line["stage"]) for line in context.runner.directory.journal.events]
    context.runner.directory.close()
    left_out = ["skip b no time", "skip c "]
    assert calls == ["run a", *left_out, "restore a 1", *left_out]
    assert events == [("begin", "a"), ("end", "a"), ("skip", "b"), ("skip", "b")], (
        "what the settings say needs no words"
    )
