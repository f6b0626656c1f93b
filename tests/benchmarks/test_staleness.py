"""The table of stalenesses and losses: what its columns mean, and a rehearsal on a server with a stand-in engine."""

from __future__ import annotations

import argparse
from dataclasses import replace

import pytest

from art_langgraph import TrainerClient
from benchmarks.staleness import GROUPS, LOSSES, Bench, Training, config_of, missing, table
from benchmarks.tasks.registry import TASKS
from tests.support.servers.trainer_server import TrainerServer


def test_after_equal_time_a_cell_has_the_newest_version_that_was_there() -> None:
    training = Training("agent", [(1, 2.0), (1, 4.0), (2, 6.0)])
    assert training.seconds == 6.0
    assert [training.version_at(seconds) for seconds in (1.0, 2.0, 5.0, 6.0, 9.0)] == [0, 1, 1, 2, 2]


def test_cells_are_made_again_where_one_is_missing_or_of_another_size() -> None:
    options = argparse.Namespace(steps=2, held_out=4, stalenesses=[0, 1], losses=["default"])
    cells = [
        {"task": "sql", "seed": 0, "staleness": age, "loss": "default", "steps": 2, "held_out": 4} for age in (0, 1)
    ]
    assert not missing(cells, "sql", 0, options)
    assert missing(cells[:1], "sql", 0, options)
    assert missing(cells, "sql", 1, options)
    assert missing([{**cell, "steps": 3} for cell in cells], "sql", 0, options)


async def test_each_loss_is_one_that_a_step_takes() -> None:
    for name in ("reverse_text", "sql"):
        async with TASKS[name](0) as task:
            made = {loss: config_of(task, loss).model_dump_json() for loss in LOSSES}
            assert len(set(made.values())) == len(LOSSES)
            assert config_of(task, "default") == task.recipe.config


@pytest.mark.slow
async def test_the_cells_of_a_task_are_trained_and_measured(connected: TrainerServer) -> None:
    lines = list[str]()
    async with TrainerClient() as client, TASKS["reverse_text"](0) as task:
        task = replace(task, recipe=replace(task.recipe, warm_start=None))
        cells = await Bench(task, 0, client, 2, 2, lines.append).cells([0, 1], ["default"])
    assert [(cell["staleness"], cell["steps"], cell["held_out"]) for cell in cells] == [(0, 2, 2), (1, 2, 2)]
    assert all(sum(cell["ages"].values()) == 2 * GROUPS for cell in cells)
    assert max(cell["steps_in_equal_time"] for cell in cells) == 2, "the fastest has all its steps"
    assert all(0.0 <= cell[name] <= 1.0 for cell in cells for name in ("warm", "equal_samples", "equal_time"))
    assert table(cells).row_count == len(lines) == 2
