"""A specialization in a process of its own, to be killed: `python -m tests.support.killed.specialization OUTPUT`.

It prints what `specialize` tells of its stages, and `done` in the end. Run again, it continues.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from art_langgraph import SFTConfig
from art_mcp import (
    GenerationSettings,
    MCPScenario,
    RunSettings,
    ScenarioSet,
    TrainingSettings,
    WarmStart,
    specialize,
)
from art_mcp.scenarios.plan import Observation, Plan, Split, Step
from tests.support.mcp.commands import SERVER

POLICY = "killed-special"


def adding(a: int, b: int, split: Split) -> MCPScenario:
    """A task that the small engine solves."""
    plan = Plan(
        server="tested",
        reference=[Step(tool="add", arguments={"a": a, "b": b})],
        split=split,
        facts=[str(a + b)],
        observations=[Observation(text=str(a + b), structured={"result": a + b})],
    )
    return MCPScenario.make(f'call add {{"a": {a}, "b": {b}}}', plan)


async def main(output: Path) -> None:
    """Runs or continues the specialization."""
    made = await specialize(
        SERVER,
        policy=POLICY,
        minutes=None,
        scenarios=ScenarioSet([*(adding(n, n, "train") for n in range(4)), adding(7, 8, "values")], offered=["add"]),
        generation=GenerationSettings(allow_destructive=True),
        warm_start=WarmStart(config=SFTConfig(num_train_epochs=1)),
        training=TrainingSettings(steps=2, groups_per_step=2, n=2, dynamic_sampling=0),
        runs=RunSettings(max_tokens=60),
        output=output,
        resume=True,
        progress=False,
        on_stage=lambda line: print(line, flush=True),
    )
    print(f"done {made.model}", flush=True)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
