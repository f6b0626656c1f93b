"""Policies by the client: named parameters, and what is wrong with them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from art_langgraph import ARTError, Scenario, TrainerClient, Trajectory, TrajectoryGroup
from trainer_server.wire import ConfigError, GroupRef, Job, JobStatus, TrajectoryRef

pytestmark = pytest.mark.usefixtures("connected")


async def test_a_policy_is_created_by_named_parameters_and_found_again_by_the_same() -> None:
    async with TrainerClient() as trainer:
        options: dict[str, Any] = {"rank": 16, "alpha": 8.0, "targets": ["q_proj"], "seed": 3, "temperature": 0.7}
        made = await trainer.create_policy("named", **options)
        assert made.spec.model_dump(include=set(options)) == {**options, "targets": ("q_proj",)}
        assert await trainer.create_policy("named", **options) == made
        with pytest.raises(ARTError, match="exists with other values"):
            await trainer.create_policy("named", rank=8)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"rank": 7}, r"create_policy\('wrong'\): rank: .* 1, 8, 16"), ({"alpha": -1.0}, "alpha: .* greater than 0")],
)
async def test_a_value_out_of_range_is_named(options: dict[str, float], message: str) -> None:
    async with TrainerClient() as trainer:
        with pytest.raises(ConfigError, match=message):
            await trainer.create_policy("wrong", **options)  # type: ignore[arg-type]


async def test_a_wait_that_is_cancelled_says_that_the_job_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked = asyncio.Event()

    async def never(self: TrainerClient, job_id: str, *, wait: float = 0.0) -> Job:
        asked.set()
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(TrainerClient, "job", never)
    job = Job(id="job-7", kind="step", policy="p", status=JobStatus.running, created=0.0)
    async with TrainerClient() as trainer:
        waiting = asyncio.create_task(trainer.wait(job))
        await asked.wait()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    assert "nobody waits for job-7 any more; it goes on at the server" in caplog.text


async def test_what_would_train_a_completion_twice_is_said(caplog: pytest.LogCaptureFixture) -> None:
    refs = [
        GroupRef(scenario_id=name, trajectories=[TrajectoryRef(id="t", reward=1.0, completions=["chatcmpl-1"])])
        for name in ("s/planner", "s/*")
    ]
    async with TrainerClient() as trainer:
        await trainer.create_policy("twice")
        await trainer.wait(await trainer.submit("twice", refs))
        with pytest.raises(ConfigError, match=r"nodes=\['planner'\] cannot choose .* a GroupRef \('s/planner'\)"):
            await trainer.submit("twice", refs, nodes=["planner"])
    assert "1 completions are in several references of one step" in caplog.text


async def test_a_group_of_rewards_that_cannot_be_compared_is_said(caplog: pytest.LogCaptureFixture) -> None:
    task = Scenario(id="sums", input="Two and two?")
    runs = [Trajectory(scenario=task, reward=1.0, judgement=judgement) for judgement in ("jd-1", None)]
    async with TrainerClient() as trainer:
        await trainer.create_policy("mixed")
        job = await trainer.wait(await trainer.submit("mixed", [TrajectoryGroup(scenario=task, trajectories=runs)]))
    assert job.result is not None
    assert job.result.metrics["groups"] == 2
    assert "1 groups have rewards of several judgements" in caplog.text
    assert "the first: sums" in caplog.text
