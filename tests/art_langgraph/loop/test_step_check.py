"""One bad step does not end a training: what a first step of no use does, and what a later one does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from langchain_core.runnables import Runnable
from langgraph.graph import START, MessagesState, StateGraph

from art_langgraph import RolloutsFailed, TrainerClient, Trajectory, TrajectoryGroup, train
from art_langgraph.loop import step_check
from art_langgraph.loop.step_check import wait_until_ready
from tests.support.runs.chat_models import Answering
from tests.support.runs.graphs import counting
from tests.support.servers.trainer_server import TrainerServer
from trainer_server.common import Connection
from trainer_server.wire import ServerUnreachable, StepResult


class Client(TrainerClient):
    """Takes every step, and is ready as soon as it was asked so often."""

    retry_for = 60.0

    def __init__(self, ready_after: int = 0) -> None:
        self.sent: list[list[TrajectoryGroup]] = []
        self.asked, self.ready_after = 0, ready_after
        self.connection = Connection("http://127.0.0.1:1", "key")

    async def train_step(self, policy: str, groups: Sequence[Any], *_: Any, **__: Any) -> StepResult:
        self.sent.append(list(groups))
        return StepResult(version=len(self.sent), metrics={"job": {"seconds": {}}})

    async def health(self) -> dict[str, Any]:
        self.asked += 1
        if self.asked == 1:
            raise ServerUnreachable("gone")
        return {"ready": self.asked > self.ready_after}


def graph(before: Callable[[int], None] = lambda run: None, after: Callable[[int], None] = lambda run: None) -> Any:
    """A graph that counts its runs, and may raise before the model answers or after it."""
    runs = iter(range(10**6))

    async def node(state: MessagesState) -> dict[str, Any]:
        run = next(runs)
        before(run)
        answer = await Answering().ainvoke(state["messages"])
        after(run)
        return {"messages": [answer]}

    compiled: Runnable[Any, Any] = StateGraph(MessagesState).add_node("model", node).add_edge(START, "model").compile()
    return compiled


def fails(*runs: int) -> Callable[[int], None]:
    def check(run: int) -> None:
        if run in runs:
            raise ValueError(f"run {run}")

    return check


async def steps(graph: Any, client: Client, reward: Any = lambda _: 1.0, **options: Any) -> int:
    options = {"steps": 5, "groups_per_step": 1, "n": 2, "progress": False, "shuffle": False, **options}
    options = {"temperature": None, **options}  # nobody could tell at which one this model answers
    done = 0
    async for _ in train(graph, ["a", "b"], policy="agent", reward=reward, client=client, **options):
        done += 1
    return done


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    async def at_once(_: float) -> None:
        await real(0)

    real = asyncio.sleep
    monkeypatch.setattr(step_check.asyncio, "sleep", at_once)


async def test_a_first_step_of_no_use_is_an_error() -> None:
    client = Client()
    with pytest.raises(RolloutsFailed, match="2 of 2 runs raised: ValueError: run 0"):
        await steps(graph(after=fails(0, 1)), client)
    assert client.sent == []


async def test_a_later_step_of_no_use_is_sent_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    client = Client()
    assert await steps(graph(after=fails(2, 3)), client) == 5
    assert len(client.sent) == 5
    (warning,) = caplog.messages
    assert warning == "step 2 can learn nothing, and the training goes on: 2 of 2 runs raised: ValueError: run 2"


async def test_three_steps_of_no_use_in_a_row_end_the_training() -> None:
    client = Client()
    with pytest.raises(RolloutsFailed, match="3 steps in a row can learn nothing; step 4: 2 of 2 runs raised"):
        await steps(graph(after=fails(*range(2, 10))), client)
    assert len(client.sent) == 3
    assert await steps(graph(after=fails(2, 3, 4, 5, 8, 9)), client) == 5


async def test_a_step_whose_rewards_fail_is_no_end() -> None:
    scored = iter(range(99))

    def reward(_: Trajectory) -> float:
        if next(scored) in (2, 3):
            raise OSError("the judge is down")
        return 1.0

    assert await steps(graph(), Client(), reward) == 5


async def test_a_step_without_any_answer_waits_for_the_server_and_is_rolled_once_more() -> None:
    client = Client(ready_after=3)
    assert await steps(graph(before=fails(2, 3)), client) == 5
    assert client.asked == 4
    assert all(run.error is None for groups in client.sent for group in groups for run in group.trajectories)
    with pytest.raises(RolloutsFailed, match="2 of 2 runs raised: ValueError: run 4"):
        await steps(graph(before=fails(2, 3, 4, 5)), Client())


async def test_a_server_that_does_not_come_back_is_waited_for_so_long() -> None:
    assert not await wait_until_ready(Client(ready_after=10**9), patience=0.05)
    assert await wait_until_ready(Client(ready_after=3), patience=60)


async def test_a_node_that_was_not_reached_is_no_failure(caplog: pytest.LogCaptureFixture) -> None:
    assert await steps(graph(), Client(), nodes=["planner"], steps=1) == 1
    assert "none of 2 runs has a completion of policy 'agent' in nodes=['planner']" in caplog.text
    assert "it answered in 'model'" in caplog.text


async def test_what_is_of_no_use_costs_no_more_rollouts() -> None:
    ran: list[int] = []

    def fail(run: int) -> None:
        ran.append(run)
        raise ValueError(f"run {run}")

    with pytest.raises(RolloutsFailed, match="2 of 2 runs raised"):
        await steps(graph(after=fail), Client(), dynamic_sampling=1)
    assert sorted(ran) == [0, 1]


async def test_runs_that_were_added_and_raised_are_told_of(caplog: pytest.LogCaptureFixture) -> None:
    assert await steps(graph(before=fails(2, 3)), Client(), dynamic_sampling=1, steps=1) == 1
    (warning,) = caplog.messages
    assert warning == ("step 1, scenarios in place of those that teach nothing: 2 of 2 runs raised: ValueError: run 2")


@pytest.mark.parametrize("max_staleness", [0, 2])
async def test_a_step_says_how_many_of_its_runs_failed_also_where_rollouts_go_ahead(
    max_staleness: int, caplog: pytest.LogCaptureFixture
) -> None:
    def reward(run: Trajectory) -> float:
        if run.error is None and "b" in str(run.scenario.input):
            raise OSError("no judge")
        return 1.0

    options: dict[str, Any] = {"steps": 3, "groups_per_step": 2, "n": 2, "shuffle": False, "progress": False}
    records = [
        record
        async for record in train(
            graph(after=fails(4, 5)), ["a", "b"], policy="agent", reward=reward, client=Client(), temperature=None,
            max_staleness=max_staleness, max_concurrency=1, **options,
        )
    ]  # fmt: skip
    line = reward.__code__.co_firstlineno + 2
    unscored = f"2 of 4 runs have no reward: OSError: no judge (test_step_check.py, line {line}, in reward)"
    assert [record.failures for record in records] == [
        unscored, f"2 of 4 runs raised: ValueError: run 4; {unscored}", unscored,
    ]  # fmt: skip
    assert str(records[1]) == f"step 2: version 2, mean reward 1.000, 0 of 2 groups informative; {records[1].failures}"
    assert any(message.startswith("2 of 4 runs raised: ValueError: run 4") for message in caplog.messages)


async def test_rewards_of_completions_alone_are_rewards() -> None:
    def reward(run: Trajectory) -> None:
        run.completions[0].reward = 1.0

    assert await steps(graph(), Client(), reward) == 5


async def test_the_server_skips_a_step_of_no_use_and_says_why(connected: TrainerServer) -> None:
    scored = iter(range(99))

    def reward(_: Trajectory) -> float:
        if next(scored) >= 2:
            raise OSError("the judge is down")
        return 1.0

    async with TrainerClient() as client:
        found = [
            step
            async for step in train(
                counting(), ["a", "b"], policy="agent", reward=reward, client=client, steps=2, groups_per_step=1, n=2,
                progress=False,
            )
        ]  # fmt: skip
    assert [bool(step.skipped) for step in found] == [True, True]
