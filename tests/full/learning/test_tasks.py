"""Learning on the real vLLM, as figures: a short run of a task lifts held-out success beyond its interval.

The warm start alone lifts it so far. What three steps add to it is less than chance does to a measurement on 48
scenarios, so that no test asks for a gain of GRPO here: `benchmarks/tasks` measures it. But steps that are wrong, in
the sign of an advantage for example, would destroy what the warm start taught, and a loss beyond chance fails. The
steps of `reverse_text` have as many groups as its recipe: with half of them its learning rate alone lost as much (seed
0: from 0.52 to 0.13, 0.19, 0.21 and 0.31 in four runs). With all of them it did once in many runs, from 0.40 to 0.08.
At a third of the rate steps of the wrong sign would pass.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from art_examples.learning.learn import learn

from art_langgraph import TrainerClient
from benchmarks.tasks.registry import TASKS

pytestmark = [pytest.mark.vllm, pytest.mark.usefixtures("found_by_clients")]

HELD_OUT = 48


@pytest.mark.parametrize(("name", "groups"), [("reverse_text", 8), ("sql", 4)], ids=["reverse_text", "sql"])
async def test_a_short_run_lifts_held_out_success_beyond_its_interval(name: str, groups: int) -> None:
    async with TrainerClient() as client, TASKS[name](0) as task:
        short = replace(task.recipe, steps=3, groups_per_step=groups)
        task = replace(task, held_out=task.held_out[:HELD_OUT], recipe=short)
        learned = await learn(task, 0, client, f"lifted-{name}".replace("_", "-"), print)
    assert learned.before is not None
    assert learned.after is not None
    assert learned.before.n == learned.after.n == HELD_OUT
    assert learned.skipped < short.steps, "no training step made a version"
    _, highest_before = learned.before.success_interval
    lowest_after, _ = learned.after.success_interval
    told = f"{learned.before} → {learned.warm} → {learned.after}"
    assert lowest_after > highest_before, told
    assert learned.warm is not None
    lowest_warm, _ = learned.warm.success_interval
    _, highest_after = learned.after.success_interval
    assert highest_after >= lowest_warm, f"GRPO lost what the warm start taught: {told}"
