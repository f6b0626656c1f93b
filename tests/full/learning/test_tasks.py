"""Learning on the real vLLM, as figures: a short run of a task lifts held-out success beyond its interval."""

from __future__ import annotations

from dataclasses import replace

import pytest
from art_examples.learning.learn import learn

from art_langgraph import TrainerClient
from benchmarks.tasks.registry import TASKS

pytestmark = [pytest.mark.vllm, pytest.mark.usefixtures("found_by_clients")]

HELD_OUT = 48


@pytest.mark.parametrize("name", ["reverse_text", "sql"])
async def test_a_short_run_lifts_held_out_success_beyond_its_interval(name: str) -> None:
    async with TrainerClient() as client, TASKS[name](0) as task:
        short = replace(task.recipe, steps=3, groups_per_step=4)
        task = replace(task, held_out=task.held_out[:HELD_OUT], recipe=short)
        learned = await learn(task, 0, client, f"lifted-{name}".replace("_", "-"), print)
    assert learned.before is not None
    assert learned.after is not None
    assert learned.before.n == learned.after.n == HELD_OUT
    assert learned.skipped < short.steps, "no training step made a version"
    _, highest_before = learned.before.success_interval
    lowest_after, _ = learned.after.success_interval
    assert lowest_after > highest_before, f"{learned.before} → {learned.warm} → {learned.after}"
