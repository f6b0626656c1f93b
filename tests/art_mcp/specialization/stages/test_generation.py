"""Scenarios that an earlier process kept are not lost, with a real MCP server."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from art_mcp import GenerationSettings, MCPScenario, ScenarioSet, Server, connect
from art_mcp.scenarios.plan import Observation, Plan, Step
from art_mcp.specialization.run_directory import RunDirectory
from art_mcp.specialization.stage_runner import Budget, StageRunner
from art_mcp.specialization.stages.generation import Generation
from tests.support.mcp.commands import SHELF
from trainer_server.wire import ConfigError


def stage_runner(output: Path) -> StageRunner:
    directory = RunDirectory(output, {"seed": 0}, resume=True)
    budget = Budget(None, earlier_seconds=directory.journal.last)
    directory.journal.seconds_spent = lambda: budget.seconds_spent
    return StageRunner(directory, budget, lambda line: None, lambda: None)


async def scenarios_of(
    server: Server, n: int | ScenarioSet, runner: StageRunner, seed: int, foreign: Path | None = None
) -> ScenarioSet:
    """The scenarios with which the run begins."""
    begun: list[ScenarioSet] = []

    async def begin(scenarios: ScenarioSet) -> None:
        begun.append(scenarios)

    options = SimpleNamespace(scenarios=n, generation=GenerationSettings(foreign=foreign), seed=seed, progress=False)
    context: Any = SimpleNamespace(server=server, options=options, runner=runner, begin=begin)
    await runner.run([Generation(context)])
    return begun[0]


def talking() -> ScenarioSet:
    return ScenarioSet([MCPScenario.make("Thanks!", Plan(kind="talk", reply="talk", answer="You are welcome."))])


async def test_a_set_of_small_talk_alone_is_an_error(tmp_path: Path) -> None:
    server: Any = SimpleNamespace(name="shelf", version="1", world=None, serial=False)
    runner = stage_runner(tmp_path)
    with pytest.raises(ConfigError, match="no scenario for shelf calls a tool"):
        await scenarios_of(server, talking(), runner, 0)
    runner.directory.close()
    assert not (tmp_path / "scenarios.jsonl").exists()


@pytest.mark.parametrize(("offered", "warns"), [(["get"], False), (["get", "a", "b"], True), ([], False)])
async def test_a_set_for_fewer_than_half_of_the_tools_is_a_note(
    tmp_path: Path, offered: list[str], warns: bool
) -> None:
    plan = Plan(reference=[Step(tool="get")], observations=[Observation(text="x")])
    server: Any = SimpleNamespace(name="shelf", version="1", world=None, serial=False)
    runner = stage_runner(tmp_path)
    await scenarios_of(server, ScenarioSet([MCPScenario.make("Get it.", plan)], offered=offered), runner, 0)
    runner.directory.close()
    assert [note.startswith("only 1 of 3 tools are covered") for note in runner.notes] == [True] * warns


@pytest.mark.slow
async def test_what_was_kept_before_a_kill_is_in_the_set(tmp_path: Path) -> None:
    async with connect(SHELF) as server:
        first = stage_runner(tmp_path)
        with suppress(KeyboardInterrupt), first.stage("scenarios", "as in a process that is killed"):
            other = await scenarios_of(server, 6, stage_runner(tmp_path / "other"), 5)
            for scenario in other.scenarios[:3]:
                first.directory.add_scenario(scenario)
            raise KeyboardInterrupt
        first.directory.close()
        again = stage_runner(tmp_path)
        made = await scenarios_of(server, 8, again, 0)
        assert {one.id for one in other.scenarios[:3]} <= {one.id for one in made.scenarios}
        assert len(made) <= 8
        assert [one.id for one in again.directory.scenarios().scenarios] == [one.id for one in made.scenarios]
        again.directory.close()
        assert await scenarios_of(server, 8, stage_runner(tmp_path), 0) == made


async def test_requests_that_the_generator_did_not_write_are_a_set_of_their_own(tmp_path: Path) -> None:
    async with connect(SHELF) as server:
        made = await scenarios_of(server, 2, stage_runner(tmp_path / "first"), 0)
        ScenarioSet([one.with_plan(split="train") for one in made.scenarios[:2]]).save(tmp_path / "own.jsonl")
        more = await scenarios_of(server, 6, stage_runner(tmp_path / "second"), 5, tmp_path / "own.jsonl")
    assert [one.task for one in more.held_out_sets["foreign"]] == [one.task for one in made.scenarios[:2]]
    assert len(more.train) + len(more.held_out) == len(more) <= 8
