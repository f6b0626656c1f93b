"""Which runs count for a version, and which are kept for the gate."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import HumanMessage

from art_langgraph import Scenario, Trajectory, TrajectoryStore
from art_langgraph.auto_pilot.decision import Outcomes
from art_langgraph.auto_pilot.runs import LedgerRuns, StoredRuns, count, trainable
from art_langgraph.loop.watch.held_out import input_id
from art_langgraph.trajectory import CompletionCall
from trainer_server.wire import RolloutListed, ServerError


def run(*versions: int, model: str = "agent", **fields: Any) -> Trajectory:
    """A run whose calls were answered by these versions, and that succeeded if nothing else is said."""
    calls = [
        CompletionCall(id=f"c{number}", model=model, version=version, message={"content": "x"}, started=0.0)
        for number, version in enumerate(versions)
    ]
    values: dict[str, Any] = {"scenario": Scenario(input="say x"), "rollout_id": "ro-1", "reward": 1.0, **fields}
    return Trajectory(completions=calls, **values)


def liked(trajectory: Trajectory) -> bool:
    return trajectory.reward == 1.0


@pytest.mark.parametrize(
    ("one", "outcomes", "unscored"),
    [
        (run(2, 2), Outcomes(1, 1), 0),
        (run(2, reward=0.5), Outcomes(0, 1), 0),
        (run(2, reward=None), Outcomes(0, 0), 1),
        (run(2, reward=None, error="it broke"), Outcomes(0, 1), 0),
        (run(2, error="it broke"), Outcomes(0, 1), 0),
        (run(1), Outcomes(0, 0), 0),
        (run(1, 2), Outcomes(0, 0), 0),
        (run(2, rollout_id=None), Outcomes(0, 0), 0),
        (run(2, requested_version=2), Outcomes(0, 0), 0),
        (run(2, model="agent@2"), Outcomes(0, 0), 0),
        (run(2, model="agent@latest"), Outcomes(0, 0), 0),
        (run(2, evaluation=True), Outcomes(0, 0), 0),
        (run(2, model="other"), Outcomes(0, 0), 0),
    ],
)
def test_runs_count_that_the_server_was_free_to_give_a_version(
    one: Trajectory, outcomes: Outcomes, unscored: int
) -> None:
    counted = count([one], "agent", 2, liked)
    assert (counted.outcomes, counted.unscored_count) == (outcomes, unscored)


def test_what_asks_the_same_as_the_gate_is_not_trained_on() -> None:
    same: list[Any] = [
        "say x",
        {"messages": [{"role": "user", "content": "say x"}]},
        {"messages": [HumanMessage("say x")]},
        {"messages": [("user", "say x")]},
    ]
    assert len({input_id(Scenario(input=one, metadata={"from": str(at)})) for at, one in enumerate(same)}) == 1
    gate = frozenset({input_id(Scenario(input="say x"))})
    assert not any(trainable(run(1, scenario=Scenario(input=one)), "agent", gate) for one in same)
    assert trainable(run(1, scenario=Scenario(input="say y")), "agent", gate)
    longer = {"messages": [*same[1]["messages"], {"role": "user", "content": "and y"}]}
    assert trainable(run(1, scenario=Scenario(input=longer)), "agent", gate)


@pytest.mark.parametrize(
    "one", [run(1, reward=None), run(1, evaluation=True), run(1, hints={"agent": "x"}), run(1, model="other")]
)
def test_what_cannot_be_trained_is_left_out(one: Trajectory) -> None:
    assert not trainable(one, "agent", frozenset())


async def test_the_store_is_read_again_only_after_it_changed(tmp_path: Path) -> None:
    store = TrajectoryStore(tmp_path / "runs.sqlite")
    recorded = StoredRuns(store)
    store.add(run(1, started=5.0, reward=None))
    (first,) = await recorded.runs(0.0)
    assert (await recorded.runs(1.0))[0] is first
    assert await recorded.runs(6.0) == []
    store.score(first.id, 0.5)
    (scored,) = await recorded.runs(1.0)
    assert scored.reward == 0.5
    store.add(run(1, started=0.5))
    assert len(await recorded.runs(0.0)) == 2
    assert [one.id for one in await recorded.read([first.id, "gone"])] == [first.id]


class Ledger:
    """A trainer server that lists three rollouts, one of which was purged since."""

    def __init__(self) -> None:
        self.reads = list[str]()

    async def rollouts(self, **_: Any) -> AsyncIterator[RolloutListed]:
        for name in ("first", "purged", "last"):
            yield RolloutListed(id=name, created=1.0, reward=1.0)

    async def rollout(self, rollout_id: str) -> Trajectory:
        self.reads.append(rollout_id)
        if rollout_id == "purged":
            raise ServerError("there is no such rollout", status=404)
        return run(1, id=rollout_id, started=1.0)


async def test_rollouts_that_the_server_has_no_longer_are_left_out() -> None:
    server: Any = Ledger()
    recorded = LedgerRuns(server, "agent")
    assert [one.id for one in await recorded.runs(0.0)] == ["last", "first"]
    assert [one.id for one in await recorded.read(["first", "purged"])] == ["first"]
    server.reads.clear()
    assert len(await recorded.runs(0.0)) == 2
    assert server.reads == ["purged"], "known ones are not read again"
