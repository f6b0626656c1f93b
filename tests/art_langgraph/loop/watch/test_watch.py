"""A training run that watches itself, on the real server and trainer: held-out success, the best version, resuming.

What a version can do is decided here by its number: it solves the first SKILL[version] of the held-out scenarios.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from langgraph.graph import START, MessagesState, StateGraph

from art_langgraph import (
    ChatART,
    HeldOut,
    RolloutsFailed,
    Scenario,
    StepRecord,
    TargetReached,
    TrainerClient,
    Trajectory,
    TrajectoryStore,
    evaluate,
    train,
)
from tests.support.servers.trainer_server import TrainerServer
from trainer_server.wire import ConfigError

SKILL = {0: 2, 1: 7, 2: 9, 3: 9, 4: 3, 5: 9}
HELD = [Scenario(input=f"question {at}", metadata={"at": at}) for at in range(12)]
TRAINING = [f"train {at}" for at in range(4)]


class Reward:
    """Of held-out runs: what SKILL says. Of training runs: anything that differs."""

    def __init__(self) -> None:
        self.measured: Counter[int] = Counter()
        self._runs: Counter[str] = Counter()

    def __call__(self, trajectory: Trajectory) -> float:
        if not trajectory.evaluation:
            self._runs[trajectory.scenario.id] += 1
            return float(self._runs[trajectory.scenario.id] % 2)
        (version,) = {call.version for call in trajectory.completions}
        assert version is not None
        self.measured[version] += 1
        return float(trajectory.scenario.metadata["at"] < SKILL[version])


def graph(policy: str) -> Any:
    model = ChatART(policy=policy, max_tokens=9)

    async def node(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    return StateGraph(MessagesState).add_node("model", node).add_edge(START, "model").compile()


@pytest.fixture
async def client(connected: TrainerServer) -> AsyncIterator[TrainerClient]:
    async with TrainerClient() as made:
        yield made


async def run(client: TrainerClient, policy: str, reward: Reward, **options: Any) -> list[StepRecord]:
    options = {"steps": 4, "held_out": HELD, "progress": False, **options}
    steps = train(
        graph(policy), TRAINING, policy=policy, reward=reward, client=client, groups_per_step=2, n=2, **options
    )
    return [record async for record in steps]


async def test_the_best_version_is_promoted_and_the_run_is_continued(client: TrainerClient, tmp_path: Path) -> None:
    policy, reward, store = "best", Reward(), TrajectoryStore(tmp_path / "store.sqlite")
    await client.create_policy(policy)
    keeping: dict[str, Any] = {"evaluate_every": 2, "keep_best": True, "store": store, "run": "mine"}
    records = await run(client, policy, reward, **keeping)
    assert [record.evaluation and record.evaluation.successes for record in records] == [None, 9, None, 3]
    assert {record.baseline and record.baseline.successes for record in records} == {2}
    assert [record.best and record.best.version for record in records] == [None, None, None, 2]
    assert "held-out success 0.750 (0.468 to 0.911), 0.167 before" in str(records[1])
    best = records[-1].best
    assert best is not None
    assert best.again is not None
    assert best.gain is not None
    assert (best.evaluation.successes, best.again.successes) == (9, 9)
    assert best.gain.mean == pytest.approx(7 / 12)
    assert "scored by itself once more: success 0.750" in str(records[-1])
    assert "'best' is best@2" in str(records[-1])
    assert reward.measured == {0: 12, 2: 24, 4: 12}
    assert all(record.versions == {policy: [record.step - 1]} for record in records)
    assert records[-1].summary()["best"]["version"] == 2

    known = await client.policy(policy)
    assert (known.latest, known.promoted) == (4, 2)
    served = await evaluate(graph(policy), HELD[:1], reward, progress=False)
    assert served.versions == {policy: [2]}
    asked = await evaluate(graph(f"{policy}@latest"), HELD[:1], reward, progress=False)
    told = await evaluate(graph(f"{policy}@latest"), HELD[:1], reward, version={policy: 1}, progress=False)
    assert (asked.versions, told.versions) == ({policy: [4]}, {policy: [1]}), "@latest fixes no version"
    assert {one.version: one.score for one in await client.versions(policy) if one.scored_by == "evaluation"} == {
        0: pytest.approx(2 / 12), 2: pytest.approx(9 / 12), 4: pytest.approx(3 / 12)
    }  # fmt: skip

    reward.measured.clear()
    (record,) = await run(client, policy, reward, steps=5, first_step=5, **keeping)
    assert record.versions == {policy: [4]}, "training goes on from the newest version, whatever is promoted"
    assert record.baseline is not None
    assert record.baseline.versions == {policy: [0]}, "that of the first part of the run"
    assert (record.evaluation and record.evaluation.successes, record.best and record.best.version) == (9, 2)
    assert reward.measured == {5: 12, 2: 12}, "what was measured is not measured again; the best once more"

    reward.measured.clear()
    await client.delete_version(policy, 4)
    again = await run(client, policy, reward, steps=5, **keeping)
    assert [one.evaluation is not None for one in again] == [False, True, False, True, True]
    assert reward.measured == {2: 12}
    assert all(not one.groups for one in again)


async def test_a_run_ends_when_its_target_is_reached(client: TrainerClient) -> None:
    policy, reward = "target", Reward()
    await client.create_policy(policy)
    records = await run(client, policy, reward, evaluate_every=1, stop_when=[lambda _: None, TargetReached(0.4)])
    assert [record.step for record in records] == [1, 2]
    assert "has reached 0.4" in str(records[-1].stopped)
    assert "stopped: held-out success 0.750" in str(records[-1])
    assert (await client.policy(policy)).promoted is None
    assert reward.measured == {0: 12, 1: 12, 2: 12}


async def test_a_run_that_ends_early_is_measured_at_its_end(client: TrainerClient) -> None:
    policy, reward = "early", Reward()
    await client.create_policy(policy)
    (record,) = await run(client, policy, reward, stop_when=lambda records: "enough")
    assert (record.stopped, record.evaluation and record.evaluation.successes) == ("enough", 7)


async def test_a_run_that_is_left_says_what_is_best(client: TrainerClient, caplog: pytest.LogCaptureFixture) -> None:
    policy, reward = "left", Reward()
    await client.create_policy(policy)
    steps = train(
        graph(policy), TRAINING, policy=policy, reward=reward, client=client, steps=4, groups_per_step=2, n=2,
        held_out=HELD, evaluate_every=1, keep_best=True, progress=False,
    )  # fmt: skip
    async with aclosing(steps):  # type: ignore[type-var]
        async for record in steps:
            if record.step == 2:
                break
    assert "left@2 is the best (held-out success 0.750" in caplog.text
    assert "art-langgraph promote left@2" in caplog.text
    assert (await client.policy(policy)).promoted is None
    assert [one.version for one in await client.versions(policy) if one.score == 0.75] == [2]


async def test_a_measurement_that_fails_costs_no_training(
    client: TrainerClient, caplog: pytest.LogCaptureFixture
) -> None:
    policy, reward = "unmeasurable", Reward()
    await client.create_policy(policy)

    def never(trajectory: Trajectory) -> float:
        if trajectory.completions[0].version == 0:
            return 0.0
        raise ValueError("the grader is away")

    records = await run(client, policy, reward, steps=2, held_out=HeldOut(HELD, never), evaluate_every=1)
    assert [record.evaluation for record in records] == [None, None]
    assert caplog.text.count("could not be measured") == 2
    with pytest.raises(RolloutsFailed, match="the grader is away"):
        await run(client, policy, reward, steps=3, first_step=3, held_out=HeldOut(HELD, never))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"held_out": None, "keep_best": True}, "keep_best=True needs held_out"),
        ({"held_out": None, "evaluate_every": 2}, "evaluate_every=2 needs held_out"),
        ({"held_out": None, "stop_when": TargetReached(0.5)}, "give held_out"),
        ({"stop_when": 0.9}, "stop_when=0.9 is no rule: give TargetReached"),
        ({"evaluate_every": 0}, "evaluate_every=0"),
        ({"held_out": TRAINING[:1]}, "1 of 1 held-out scenarios are trained on"),
        ({"reward": None, "group_reward": lambda group: group}, "held_out needs a reward for single runs"),
    ],
)
async def test_what_cannot_be_met_is_refused(client: TrainerClient, wrong: dict[str, Any], message: str) -> None:
    options: dict[str, Any] = {"reward": Reward(), "held_out": HELD, "progress": False, **wrong}
    with pytest.raises(ConfigError, match=message):
        async for _ in train(
            graph("agent"), TRAINING, policy="agent", client=client, steps=1, groups_per_step=2, **options
        ):
            pass
