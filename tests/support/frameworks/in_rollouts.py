"""Runs the agent of a script in rollouts: what its user would write. It runs in an environment of the framework.

`python -m tests.support.frameworks.in_rollouts SCRIPT`: reads `{"inputs": […], "n": N}` from standard input, and writes
groups of trajectories to standard output, as JSON.
"""

from __future__ import annotations

import asyncio
import json
import runpy
import sys
from contextlib import redirect_stdout

from art_langgraph import Trajectory, TrajectoryGroup, gather


async def reward(trajectory: Trajectory) -> float:
    """1 where the answer is right."""
    return float("Rome" in trajectory.final_text)


async def run(script: str, inputs: list[str], n: int) -> list[TrajectoryGroup]:
    """Runs the function `agent` of a script on all inputs: on the first one alone, then on the others at once. In its
    first run a framework may import the rest of itself, and CrewAI's imports do not stand several threads."""
    agent = runpy.run_path(script)["agent"]
    alone = 1 if len(inputs) > 1 else 0
    groups = await gather(agent, inputs[:alone], n=n, reward=reward, progress=False) if alone else []
    return [*groups, *await gather(agent, inputs[alone:], n=n, reward=reward, progress=False)]


if __name__ == "__main__":
    with redirect_stdout(sys.stderr):  # frameworks print
        asked = json.load(sys.stdin)
        groups = asyncio.run(run(sys.argv[1], asked["inputs"], asked["n"]))
    print(json.dumps([group.model_dump(mode="json") for group in groups]))
