"""`train --from-store`: which recorded runs a step takes, and which are free for the next."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from art_langgraph import GRPOConfig, TrainerClient, TrajectoryStore, gather, train
from tests.support.cli import art
from tests.support.runs.graphs import counting
from tests.support.servers.trainer_server import TrainerServer


@pytest.fixture
def store(tmp_path: Path, connected: TrainerServer, monkeypatch: pytest.MonkeyPatch) -> TrajectoryStore:
    monkeypatch.setenv("ART_HOME", str(tmp_path))
    return TrajectoryStore()


async def record(store: TrajectoryStore, policy: str, rewards: Iterable[float], **options: Any) -> None:
    """Runs of one scenario with these rewards."""
    left = list(rewards)
    count = len(left)
    options = {"temperature": 1.0, "progress": False, **options}
    await gather(counting(policy), ["a"], count, lambda _: left.pop(), store=store, **options)


def step(policy: str) -> Any:
    return art("train", "--from-store", "--policy", policy, "--lr", "1e-3")


async def versions(policy: str) -> list[int]:
    async with TrainerClient() as client:
        return [version.version for version in await client.versions(policy)]


async def create(policy: str) -> None:
    async with TrainerClient() as client:
        await client.create_policy(policy)


async def test_a_step_that_is_interrupted_after_its_acceptance_is_not_taken_twice(
    store: TrajectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create("interrupted")
    await record(store, "interrupted", [1.0, 0.0])

    async def interrupt(self: TrainerClient, job: Any, **_options: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(TrainerClient, "wait", interrupt)
        assert "is accepted: a training step of interrupted" in step("interrupted").output
    async with TrainerClient() as client:
        (job,) = [job for job in await client.jobs() if (job.policy, job.kind) == ("interrupted", "step")]
        await client.wait(job)
    assert len(store.open_steps("interrupted")) == 1
    assert "2 of 2 runs are left out: interrupted was trained on them" in step("interrupted").output
    assert store.open_steps("interrupted") == []
    assert await versions("interrupted") == [0, 1]


async def test_a_step_that_learns_nothing_leaves_its_runs_free(store: TrajectoryStore) -> None:
    await create("equal")
    await record(store, "equal", [1.0, 1.0])
    done = step("equal").output
    assert "equal stays at version 0: every group has" in done
    assert "1 of 1 groups taught nothing; 1 of 1 scenarios never taught anything:\n- 1 × all runs succeeded" in done
    assert store.trained("equal") == set()
    await record(store, "equal", [0.0])
    done = step("equal").output
    assert "left out: equal was trained" not in done
    assert "3 runs are compared with others" in done
    assert "equal@1 is served: 3 completions" in done


async def test_runs_that_evaluate_are_neither_trained_nor_compared(store: TrajectoryStore) -> None:
    await create("held")
    await record(store, "held", [0.0, 0.0, 0.0], evaluation=True)
    await record(store, "held", [1.0])
    done = step("held").output
    assert "3 of 4 runs are left out: they evaluate a version" in done
    assert "1 with nothing to compare with" in done
    assert await versions("held") == [0]


async def test_runs_of_the_training_loop_are_marked_in_their_store(store: TrajectoryStore) -> None:
    await create("looped")
    rewards = iter([1.0, 0.0])
    async with TrainerClient() as client:
        records = train(
            counting("looped"), ["a"], policy="looped", reward=lambda _: next(rewards), steps=1, client=client,
            groups_per_step=1, n=2, config=GRPOConfig(lr=1e-3), store=store, progress=False,
        )  # fmt: skip
        assert [record.result.version async for record in records] == [1]
    assert store.trained("looped") == {run.id for run in store}
    assert "2 of 2 runs are left out" in step("looped").output


async def test_a_new_version_that_the_name_does_not_mean_is_told(store: TrajectoryStore) -> None:
    await create("rolled-back")
    await record(store, "rolled-back", [1.0, 0.0])
    async with TrainerClient() as client:
        await client.promote("rolled-back", 0)
        told = (
            "rolled-back@1 is served (rolled-back goes on to mean rolled-back@0, which is promoted: "
            "`art-langgraph promote rolled-back@1`, or `art-langgraph promote rolled-back --undo`)"
        )
        assert told in step("rolled-back").output
        await client.promote("rolled-back", None)
    await record(store, "rolled-back", [1.0, 0.0])
    assert "rolled-back@2 is served: 2 completions" in step("rolled-back").output
