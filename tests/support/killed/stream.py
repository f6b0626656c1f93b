"""A training whose groups stream, in a process of its own, to be killed: `python -m tests.support.killed.stream POLICY
STORE`. It prints `step N` after each step."""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections import defaultdict
from collections.abc import AsyncIterator
from typing import Any

from art_langgraph import GRPOConfig, Scenario, StepRecord, TrainerClient, Trajectory, TrajectoryStore, train
from tests.support.killed.training import agent

RUN = "killed"
STEPS = 5


async def steps(client: TrainerClient, policy: str, store: TrajectoryStore) -> AsyncIterator[StepRecord]:
    """The training, from its beginning or from where it was killed."""
    counts = defaultdict[str, Any](itertools.count)

    def reward(run: Trajectory) -> float:
        return float(next(counts[run.scenario.id]) % 2)

    async for record in train(
        agent(policy), [Scenario(id=f"{at}", input=f"say {at}") for at in range(6)], policy=policy, reward=reward,
        steps=STEPS, client=client, groups_per_step=2, n=2, config=GRPOConfig(lr=1e-4), store=store, run=RUN,
        max_staleness=1, max_concurrency=4, progress=False,
    ):  # fmt: skip
        yield record


async def main(policy: str, path: str) -> None:
    """Trains until it is killed."""
    async with TrainerClient() as client:
        async for record in steps(client, policy, TrajectoryStore(path)):
            print(f"step {record.step}", flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
