"""What steps learn from: rollouts in turn, or ahead of training."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langgraph.graph import START, MessagesState, StateGraph

from art_langgraph import ChatART, GRPOConfig, TrainerClient, Trajectory, train
from art_langgraph.loop.prefetch import RolloutBatch, prefetch_rollouts
from tests.support.servers.trainer_server import TrainerServer
from trainer_server.wire import ConfigError


async def events(staleness: int, steps: int = 4) -> list[str]:
    """What happens when a training takes as long as it takes the next rollouts to begin and end, if they may."""
    found: list[str] = []

    async def roll(step: int) -> RolloutBatch:
        found.append(f"roll {step}")
        await asyncio.sleep(0)
        return RolloutBatch(step)

    async for rolled in prefetch_rollouts(range(steps), roll, staleness):
        found.append(f"train {rolled.step}")
        for _ in range(20):
            await asyncio.sleep(0)
    return found


async def test_by_default_rollouts_and_training_take_turns() -> None:
    assert await events(0) == [f"{what} {step}" for step in range(4) for what in ("roll", "train")]


@pytest.mark.parametrize("staleness", [1, 2, 9])
async def test_rollouts_go_ahead_by_no_more_than_the_staleness(staleness: int) -> None:
    found = await events(staleness)
    trained = [one for one in found if one.startswith("train")]
    assert trained == [f"train {step}" for step in range(4)]
    for step in range(4):
        done = sum(one.startswith("train") for one in found[: found.index(f"roll {step}")])
        assert step - done <= staleness
    assert "roll 1" in found[: found.index("train 0") + 2]


async def test_leaving_early_cancels_rollouts_that_are_under_way() -> None:
    cancelled = asyncio.Event()

    async def roll(step: int) -> RolloutBatch:
        try:
            await asyncio.sleep(0 if step == 0 else 60)
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return RolloutBatch(step)

    batches = prefetch_rollouts(range(3), roll, 1)
    async for _ in batches:
        await asyncio.sleep(0.01)
        break
    await batches.aclose()
    assert cancelled.is_set()


async def test_rollouts_that_fail_end_the_loop() -> None:
    async def roll(step: int) -> RolloutBatch:
        if step == 1:
            raise OSError("no graph")
        return RolloutBatch(step)

    batches = prefetch_rollouts(range(3), roll, 1)
    assert (await anext(batches)).step == 0
    with pytest.raises(OSError, match="no graph"):
        await anext(batches)


async def test_overlapping_steps_train_on_versions_no_older_than_asked(connected: TrainerServer) -> None:
    model = ChatART(policy="ahead", max_tokens=4)

    async def node(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    graph = StateGraph(MessagesState).add_node("model", node).add_edge(START, "model").compile()
    counter = iter(range(1000))

    def reward(_: Trajectory) -> float:
        return float(next(counter) % 2)

    async with TrainerClient() as client:
        await client.create_policy("ahead")
        behind = []
        async for record in train(
            graph, ["a", "b", "c"], policy="ahead", reward=reward, steps=4, client=client, groups_per_step=1, n=4,
            config=GRPOConfig(lr=1e-3, max_staleness=1), max_staleness=1, progress=False,
        ):  # fmt: skip
            assert record.result.version == record.step
            behind.append(record.result.metrics["staleness_max"])
            assert record.result.metrics["completions_skipped"] == {}
        assert behind == [0, 1, 1, 1]
        with pytest.raises(ConfigError, match="max_staleness"):
            async for _ in train(graph, ["a"], policy="ahead", reward=reward, steps=1, client=client, groups_per_step=1,
                                 max_staleness=-1):  # fmt: skip
                pass
