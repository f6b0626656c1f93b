"""train(sampler=…, explore=…, measured=…) over the real server: what steps take, and what a later training knows."""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections import defaultdict
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import pytest
from langgraph.graph import START, MessagesState, StateGraph

from art_langgraph import (
    ChatART,
    Exploration,
    GRPOConfig,
    LearnableSampler,
    Scenario,
    TrainerClient,
    Trajectory,
    TrajectoryGroup,
    TrajectoryStore,
    dead_groups,
    gather,
    train,
)
from art_langgraph.loop.sampling.curriculum import Curriculum
from art_langgraph.loop.sampling.dead_groups import groups_by_version
from art_langgraph.loop.watch.record import StepRecord
from tests.support.killed import training as killed_training
from tests.support.patience import PATIENCE
from tests.support.runs.groups import group
from tests.support.servers.trainer_server import TrainerServer
from trainer_server.wire import ConfigError

SCENARIOS = [
    Scenario(id=f"{kind} {at}", input=f"say {kind}") for kind in ("dead", "solved", "alive") for at in range(4)
]


def agent(policy: str) -> Any:
    model = ChatART(policy=policy, max_tokens=8)

    async def node(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    return StateGraph(MessagesState).add_node("model", node).add_edge(START, "model").compile()


class Reward:
    """Dead scenarios are never solved below a temperature of 1.2, solved ones always, the others every other time."""

    def __init__(self) -> None:
        self.counts = defaultdict[str, Any](itertools.count)

    def __call__(self, run: Trajectory) -> float:
        kind = run.scenario.id.split()[0]
        if kind == "alive" or (kind == "dead" and (run.temperature or 0.0) > 1.2):
            return float(next(self.counts[run.scenario.id]) % 2)
        return float(kind == "solved")


async def steps(client: TrainerClient, policy: str, **options: Any) -> list[StepRecord]:
    options = {"steps": 3, "groups_per_step": 3, "n": 2, "config": GRPOConfig(lr=1e-4), "progress": False, **options}
    return [
        record
        async for record in train(
            agent(policy), options.pop("scenarios", SCENARIOS), policy=policy, reward=Reward(), client=client, **options
        )
    ]  # fmt: skip


def taken(records: Sequence[StepRecord]) -> list[list[str]]:
    return [[group.scenario.id for group in record.groups] for record in records]


async def test_a_training_that_continues_from_its_store_chooses_as_one_without_a_break(
    connected: TrainerServer, tmp_path: Path
) -> None:
    store = TrajectoryStore(tmp_path / "runs.sqlite")
    sampler = LearnableSampler("kept", n=2, exploration=0.0)
    async with TrainerClient() as client:
        await client.create_policy("kept")
        records = await steps(
            client, "kept", sampler=sampler, store=store, steps=5, explore=Exploration(n=2, budget=2),
            dynamic_sampling=1, max_staleness=1,
        )  # fmt: skip
        chosen = [name for names in taken(records) for name in names]
        # A third by chance. How many groups are on their way when the sampler learns depends on the machine's load.
        assert sum(name.startswith("alive") for name in chosen[6:]) > 0.4 * len(chosen[6:])
        assert sum(record.explored for record in records) > 0
        again = LearnableSampler("kept", n=2, exploration=0.0)
        await Curriculum.begin(
            again, SCENARIOS, policy="kept", temperature=1.0, client=client, store=store, measured_groups=()
        )
    for step in range(6, 30):
        assert again.choose(SCENARIOS, 3, step=step) == sampler.choose(SCENARIOS, 3, step=step)
    report = dead_groups(groups_by_version(store, "kept"))
    assert {one.why for one in report.scenarios} <= {"failed", "solved"}


@pytest.mark.slow
async def test_a_killed_training_continues_with_what_it_knew(connected: TrainerServer, tmp_path: Path) -> None:
    store = TrajectoryStore(tmp_path / "runs.sqlite")
    async with TrainerClient() as client:
        await client.create_policy("killed")
        training = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.support.killed.training", "killed", str(store.path),
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert training.stdout is not None
        async with asyncio.timeout(PATIENCE):
            while (await training.stdout.readline()).strip() != b"in rollouts":
                assert training.returncode is None
        training.kill()
        await training.wait()
        assert len(store) == 2 * 12 + 5  # all that had ended
        sampler = LearnableSampler("killed", n=2, exploration=0.0)
        options: dict[str, Any] = {"sampler": sampler, "run": "killed", "groups_per_step": 6, "store": store}
        records = await steps(client, "killed", scenarios=killed_training.SCENARIOS, first_step=3, **options)
    assert [record.step for record in records] == [3]
    assert len(store) == 3 * 12 + 5
    dead, alive = (sampler.chance(Scenario(id=f"{kind} 0", input="")) for kind in ("dead", "alive"))
    assert dead < sampler.chance(Scenario(id="never tried", input="")) < alive


async def test_dead_groups_are_explored_at_a_higher_temperature_and_trained(connected: TrainerServer) -> None:
    async with TrainerClient() as client:
        await client.create_policy("explored")
        (record,) = await steps(
            client, "explored", steps=1, scenarios=SCENARIOS[:2] + SCENARIOS[4:5], shuffle=False,
            explore=Exploration(temperature=1.3, n=2, budget=4),
        )  # fmt: skip
        assert (record.explored, record.informative) == (4, 2)
        assert record.result.metrics["groups_skipped_by"] == {"equal_rewards": 1}
        assert record.result.metrics["completions"] == 8
        assert "2 of 3 groups informative, 4 runs to explore" in str(record)
        first = record.groups[0].trajectories
        assert [run.temperature for run in first] == [1.0, 1.0, 1.3, 1.3]
        sampled = [await client.completion(run.completion_ids[0]) for run in first]
        assert [one.sampling.temperature for one in sampled] == [1.0, 1.0, 1.3, 1.3]
        with pytest.raises(ConfigError, match=r"temperature=1.3 must be above that of the training, 1.3"):
            await steps(client, "explored", temperature=1.3, explore=Exploration(temperature=1.3))


async def test_the_first_step_learns_from_what_was_measured(connected: TrainerServer) -> None:
    async with TrainerClient() as client:
        await client.create_policy("measured-before")
        graph = agent("measured-before")
        measured = await gather(graph, SCENARIOS, 4, Reward(), temperature=1.0, progress=False)
        sampler = LearnableSampler("measured-before", n=2, exploration=0.0)
        records = await steps(client, "measured-before", measured=measured, sampler=sampler, steps=2)
        assert (records[0].measured, records[0].result.version) == (4, 1)
        assert sorted(taken(records)[0]) == [f"alive {at}" for at in range(4)]
        known = {run.id for one in measured for run in one.trajectories}
        assert {run.id for one in records[0].groups for run in one.trajectories} < known
        assert records[1].measured == 0  # its version is another
        assert len(records[1].groups) == 3
        assert sampler.chance(SCENARIOS[0]) < sampler.chance(SCENARIOS[-1])
        new = await client.create_policy("unmeasured")
        few = [one for one in measured if one.scenario.id == "alive 0"]
        (record,) = await steps(client, new.name, measured=few, steps=1)
        assert record.measured == 0  # another policy answered


def curriculum(sampler: Any) -> Curriculum:
    return Curriculum(sampler, SCENARIOS, 1.0)


class Own:
    """A sampler of a user."""

    def __init__(self, *chosen: Scenario) -> None:
        self.chosen, self.learnt = chosen, list[str]()

    def choose(
        self, scenarios: Sequence[Scenario], count: int, *, step: int, taken: Collection[str] = ()
    ) -> Sequence[Scenario]:
        return self.chosen

    def learn(self, groups: Sequence[TrajectoryGroup]) -> None:
        self.learnt += [run.id for one in groups for run in one.trajectories]


def test_a_sampler_of_ones_own_is_held_to_its_promise() -> None:
    own = Own(*SCENARIOS[:2])
    assert curriculum(own).choose(1, 2) == SCENARIOS[:2]
    for wrong, count in ((own, 3), (own, 1), (Own(Scenario(input="other")), 1)):
        with pytest.raises(ConfigError, match=r"Own.choose gave . scenarios"):
            curriculum(wrong).choose(1, count)
    with pytest.raises(ConfigError, match="none of which the step has taken"):
        curriculum(own).choose(1, 2, [group(SCENARIOS[0], 1.0)])
    assert curriculum(own).choose(1, 0) == []


def test_a_sampler_learns_from_runs_at_the_temperature_of_training() -> None:
    own, mixed = Own(), group(SCENARIOS[0], 0.0, 1.0)
    mixed.trajectories[1].temperature = 1.3
    curriculum(own).learn([mixed])
    assert own.learnt == [mixed.trajectories[0].id]


async def test_a_sampler_that_begins_anew_says_so_once(
    connected: TrainerServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with TrainerClient() as client:
        await client.create_policy("anew")
        for sampler, warnings in (("uniform", 0), ("learnable", 1)):
            for first_step in (1, 2):  # a step that the server has accepted, and none
                caplog.clear()
                options: dict[str, Any] = {"sampler": sampler, "run": sampler, "steps": 2, "first_step": first_step}
                await steps(client, "anew", **options)
                warned = caplog.text.count("it begins anew. Give store=TrajectoryStore()")
                assert warned == (warnings if first_step == 2 else 0)
            caplog.clear()
            await steps(client, "anew", sampler=sampler, run=sampler, steps=2)
            assert caplog.text.count("it begins anew") == warnings


async def test_an_unknown_sampler_is_refused(connected: TrainerServer) -> None:
    async with TrainerClient() as client:
        with pytest.raises(ConfigError, match="sampler='greedy': give 'uniform', 'learnable'"):
            await steps(client, "p", sampler="greedy")
