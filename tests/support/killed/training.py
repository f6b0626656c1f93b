"""A training in a process of its own, to be killed: `python -m tests.support.killed.training POLICY STORE`.

It prints `step N` after each step, and makes the rollouts of its third step for as long as it lives.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from langgraph.graph import START, MessagesState, StateGraph

from art_langgraph import ChatART, GRPOConfig, Scenario, TrainerClient, Trajectory, TrajectoryStore, train

SCENARIOS = [Scenario(id=f"{kind} {at}", input=f"say {kind}") for kind in ("dead", "alive") for at in range(3)]


def agent(policy: str) -> Any:
    """A graph that asks the policy once."""
    model = ChatART(policy=policy, max_tokens=8)

    async def node(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    return StateGraph(MessagesState).add_node("model", node).add_edge(START, "model").compile()


async def main(policy: str, path: str) -> None:
    """Trains until it is killed."""
    scored = 0

    async def reward(run: Trajectory) -> float:
        nonlocal scored
        scored += 1
        if scored == 2 * 12 + 6:  # six runs of the third step are stored by then
            print("in rollouts", flush=True)
        if scored >= 2 * 12 + 6:
            await asyncio.sleep(3600)
        return 0.0 if run.scenario.id.startswith("dead") else float(scored % 2)

    async with TrainerClient() as client:
        async for record in train(
            agent(policy), SCENARIOS, policy=policy, reward=reward, steps=9, client=client, groups_per_step=6, n=2,
            config=GRPOConfig(lr=1e-4), sampler="learnable", store=TrajectoryStore(path), run="killed", progress=False,
            max_concurrency=1,
        ):  # fmt: skip
            print(f"step {record.step}", flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
