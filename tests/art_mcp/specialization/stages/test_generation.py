"""Scenarios that an earlier process kept are not lost, with a real MCP server."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from art_mcp import GenerationSettings, connect
from art_mcp.specialization.budget import Budget
from art_mcp.specialization.output.directory import RunDirectory
from art_mcp.specialization.stage_runner import StageRunner
from art_mcp.specialization.stages.generation import scenarios_for
from tests.support.mcp.commands import SHELF

pytestmark = pytest.mark.slow


def stage_runner(output: Path) -> StageRunner:
    directory = RunDirectory(output, {"seed": 0}, resume=True)
    budget = Budget(None, earlier_seconds=directory.journal.last)
    directory.journal.seconds_spent = lambda: budget.seconds_spent
    return StageRunner(directory, budget, lambda line: None, lambda: None)


async def test_what_was_kept_before_a_kill_is_in_the_set(tmp_path: Path) -> None:
    async with connect(SHELF) as server:
        first = stage_runner(tmp_path)
        with suppress(KeyboardInterrupt), first.stage("scenarios", "as in a process that is killed"):
            other = await scenarios_for(server, 6, GenerationSettings(), stage_runner(tmp_path / "other"), 5, False)
            for scenario in other.scenarios[:3]:
                first.directory.add_scenario(scenario)
            raise KeyboardInterrupt
        first.directory.close()
        again = stage_runner(tmp_path)
        made = await scenarios_for(server, 8, GenerationSettings(), again, 0, False)
        assert {one.id for one in other.scenarios[:3]} <= {one.id for one in made.scenarios}
        assert len(made) <= 8
        assert [one.id for one in again.directory.scenarios().scenarios] == [one.id for one in made.scenarios]
        again.directory.close()
        assert await scenarios_for(server, 8, GenerationSettings(), stage_runner(tmp_path), 0, False) == made
