"""What steps learn from: rollouts in turn, or groups that are made during training."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from langgraph.graph import START, MessagesState, StateGraph

from art_langgraph import ChatART, GRPOConfig, Scenario, TrainerClient, Trajectory, TrajectoryGroup, train
from art_langgraph.loop.stream import CompleteGroup, GroupStream
from tests.support.servers.trainer_server import TrainerServer
from trainer_server.wire import ConfigError


class Groups:
    """Makes groups with numbers, each of which takes as long as it is told."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.ends: dict[int, asyncio.Event] = {}
        self.cancelled: list[int] = []
        self.failure: Exception | None = None

    async def make(self, begin: Callable[[], None]) -> CompleteGroup:
        number = len(self.begun)
        self.begun.append(number)
        begin()
        try:
            await self.ends.setdefault(number, asyncio.Event()).wait()
        except asyncio.CancelledError:
            self.cancelled.append(number)
            raise
        if self.failure is not None:
            raise self.failure
        return CompleteGroup(TrajectoryGroup(scenario=Scenario(id=str(number), input="")), 0.0, 0.0)

    def end(self, *numbers: int) -> None:
        for number in numbers:
            self.ends.setdefault(number, asyncio.Event()).set()


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_step_takes_the_groups_in_the_order_in_which_they_are_complete() -> None:
    groups = Groups()
    async with GroupStream(groups.make, asyncio.Semaphore(9), 9) as stream:
        stream.allow(3)
        await settled()
        assert groups.begun == [0, 1, 2], "there are no more than there is room for"
        groups.end(2, 1)
        taken = [(await stream.take()).group.scenario.id for _ in range(2)]
        assert sorted(taken) == ["1", "2"]
        await settled()
        assert groups.begun == [0, 1, 2, 3, 4], "others take the room of those that were taken"
        groups.end(0)
        assert (await stream.take()).group.scenario.id == "0", "the one that took longest goes on, and is not lost"


@pytest.mark.parametrize(("slots", "in_flight"), [(512, 4), (4, 512)])
async def test_no_more_groups_exist_than_are_of_use(slots: int, in_flight: int) -> None:
    limit, groups = asyncio.Semaphore(slots), Groups()

    async def make(begin: Callable[[], None]) -> CompleteGroup:
        async with limit:
            return await groups.make(begin)

    async with GroupStream(make, limit, in_flight) as stream:
        stream.allow(8)
        await settled()
        assert groups.begun == [0, 1, 2, 3]
        groups.end(*range(9))
        await settled()
        assert len(groups.begun) == 8, "what nobody takes is enough"
        await stream.take()
        await settled()
        assert len(groups.begun) == 9


async def test_leaving_early_cancels_rollouts_that_are_under_way() -> None:
    groups = Groups()
    async with GroupStream(groups.make, asyncio.Semaphore(9), 9) as stream:
        stream.allow(3)
        groups.end(0)
        await stream.take()
        await settled()
    assert sorted(groups.cancelled) == [1, 2, 3]


async def test_rollouts_that_fail_end_the_loop() -> None:
    groups = Groups()
    async with GroupStream(groups.make, asyncio.Semaphore(9), 9) as stream:
        stream.allow(2)
        groups.end(0)
        await stream.take()
        groups.failure = OSError("no graph")
        groups.end(1)
        with pytest.raises(OSError, match="no graph"):
            await stream.take()
        begun = len(groups.begun)
        await settled()
        assert len(groups.begun) == begun


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
