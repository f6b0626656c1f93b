"""TrainerClient: named parameters and what is wrong with them, and a server that is gone for a while."""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from art_langgraph import ARTError, Scenario, TrainerClient, Trajectory, TrajectoryGroup, train
from tests.support.runs.graphs import counting
from tests.support.servers.serving import serving
from tests.support.servers.trainer_server import TrainerServer
from trainer_server.engines.vllm.command import free_port
from trainer_server.server.access.tokens import Scope, TokenRepository
from trainer_server.wire import (
    ConfigError,
    GroupRef,
    Job,
    JobStatus,
    ServerError,
    ServerUnreachable,
    StepResult,
    TrajectoryRef,
)


@pytest.mark.usefixtures("connected")
async def test_a_policy_is_created_by_named_parameters_and_found_again_by_the_same() -> None:
    async with TrainerClient() as trainer:
        options: dict[str, Any] = {"rank": 16, "alpha": 8.0, "targets": ["q_proj"], "seed": 3, "temperature": 0.7}
        made = await trainer.create_policy("parameters", **options)
        assert made.spec.model_dump(include=set(options)) == {**options, "targets": ("q_proj",)}
        assert await trainer.create_policy("parameters", **options) == made
        with pytest.raises(ARTError, match=r"exists with other values: rank is 16, not 8, alpha is 8.0, not"):
            await trainer.create_policy("parameters", rank=8)


async def test_work_that_needs_an_admin_says_so_before_it_begins(connected: TrainerServer) -> None:
    book = TokenRepository(connected.home)
    secret = book.create("tina", Scope.train, seconds=600)
    async with TrainerClient(connected.url, secret) as trainer:
        token = await trainer.token()
        assert (token.name, token.scope) == ("tina", "train")
        assert token.expires is not None
        with pytest.raises(ConfigError, match=r"which needs a token of scope admin: .*'tina'.* the scope train"):
            await trainer.require_admin("keep_best=True promotes")
    book.revoke("tina")
    async with TrainerClient() as trainer:
        await trainer.require_admin("keep_best=True promotes")


@pytest.mark.usefixtures("connected")
async def test_the_server_says_what_it_cannot_take() -> None:
    async with TrainerClient() as trainer:
        with pytest.raises(ServerError, match="surrogates not allowed"):
            await trainer.submit("agent", [GroupRef(scenario_id="\ud83d", trajectories=[])])


@pytest.mark.usefixtures("connected")
@pytest.mark.parametrize(
    ("options", "message"),
    [({"rank": 7}, r"create_policy\('wrong'\): rank: .* 1, 8, 16"), ({"alpha": -1.0}, "alpha: .* greater than 0")],
)
async def test_a_value_out_of_range_is_named(options: dict[str, float], message: str) -> None:
    async with TrainerClient() as trainer:
        with pytest.raises(ConfigError, match=message):
            await trainer.create_policy("wrong", **options)  # type: ignore[arg-type]


@pytest.mark.usefixtures("connected")
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


@pytest.mark.usefixtures("connected")
async def test_what_would_train_a_completion_twice_is_said(caplog: pytest.LogCaptureFixture) -> None:
    refs = [
        GroupRef(scenario_id=name, trajectories=[TrajectoryRef(id="t", reward=1.0, completions=["chatcmpl-1"])])
        for name in ("s/planner", "s/*")
    ]
    async with TrainerClient() as trainer:
        await trainer.create_policy("twice")
        await trainer.wait(await trainer.submit("twice", refs))
        with pytest.raises(ConfigError, match=r"group 0 .* is a GroupRef, which does not say in which node"):
            await trainer.submit("twice", refs, nodes=["planner"])
    assert "1 completions are in several references of one step" in caplog.text


@pytest.mark.usefixtures("connected")
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


@pytest.mark.usefixtures("connected")
async def test_runs_with_equal_rewards_are_trained_by_advantages_of_their_own() -> None:
    async def opposite(groups: Sequence[TrajectoryGroup]) -> list[list[float]]:
        return [[1.5, -0.5] for _ in groups]

    async with TrainerClient() as trainer:
        await trainer.create_policy("own")
        (record,) = [
            record
            async for record in train(
                counting("own"), ["x"], policy="own", reward=lambda _: 1.0, advantages=opposite, client=trainer,
                steps=1, groups_per_step=1, n=2, progress=False,
            )
        ]  # fmt: skip
        metrics = record.result.metrics
        assert record.result.version == 1
        assert (metrics["advantage_mean"], metrics["advantage_max"], metrics["reward_mean"]) == (0.5, 1.5, 1.0)
        group = record.groups[0]
        refused = GroupRef(
            scenario_id="s",
            trajectories=[
                TrajectoryRef(id=run.id, reward=1.0, advantage=advantage, completions=run.completion_ids)
                for run, advantage in zip(group.trajectories, (1.0, None), strict=True)
            ],
        )
        with pytest.raises(ServerError, match="has a reward and no advantage"):
            await trainer.submit("own", [refused])


def job(status: JobStatus) -> Job:
    result = StepResult(version=3, metrics={}) if status == JobStatus.succeeded else None
    return Job(id="job-1", kind="step", policy="agent", status=status, created=time.time(), result=result)


def job_server(status: JobStatus) -> Starlette:
    """A trainer server that knows of one job, and tells of it at once."""

    async def show(request: Request) -> JSONResponse:
        return JSONResponse(job(status).model_dump(mode="json"))

    return Starlette(routes=[Route("/api/jobs/{id}", show)])


async def test_waiting_for_a_step_outlives_a_restart_of_the_server(caplog: pytest.LogCaptureFixture) -> None:
    port = free_port()
    async with TrainerClient(f"http://127.0.0.1:{port}", "key") as client:
        with serving(job_server(JobStatus.running), port):
            waiting = asyncio.create_task(client.result(job(JobStatus.running)))
            assert (await client.job("job-1")).status == JobStatus.running
        while "no trainer server answers" not in caplog.text:  # the server is gone, and the client has noticed
            await asyncio.sleep(0.01)
        assert not waiting.done()
        with serving(job_server(JobStatus.succeeded), port):
            assert (await waiting).version == 3
    assert f"no trainer server answers at http://127.0.0.1:{port} (" in caplog.text
    assert f"the trainer server at http://127.0.0.1:{port} answers again" in caplog.text


async def test_a_server_that_stays_away_is_an_error_that_says_so() -> None:
    async with TrainerClient(f"http://127.0.0.1:{free_port()}", "key", retry_for=0.2) as client:
        with pytest.raises(ServerUnreachable, match=r"no trainer server answers at .* \(ConnectError: .*serve"):
            await client.health()


async def test_without_a_server_a_program_ends_with_one_traceback_whose_last_line_says_what_helps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ART_HOME", str(tmp_path))
    for name in ("ART_BASE_URL", "ART_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError) as no_token:
        TrainerClient()
    async with TrainerClient(f"http://127.0.0.1:{free_port()}", "key", retry_for=0) as client:
        with pytest.raises(ServerUnreachable) as no_server:
            await client.create_policy("agent")
    for error in (no_token.value, no_server.value):
        printed = "".join(traceback.format_exception(error))
        assert printed.count("Traceback") == 1
        assert "art-langgraph connect URL" in printed.splitlines()[-1]


async def test_waiting_for_a_job_can_have_an_end() -> None:
    with serving(job_server(JobStatus.running)) as url:
        async with TrainerClient(url, "key") as client:
            with pytest.raises(TimeoutError, match=r"job-1 on policy 'agent' is running after 0.05 s and goes on"):
                await client.result(job(JobStatus.queued), timeout=0.05)


async def test_what_a_step_would_ignore_is_refused_before_it_is_sent() -> None:
    run = Trajectory(scenario=Scenario(input="x"))
    group = TrajectoryGroup(scenario=run.scenario, trajectories=[run])
    async with TrainerClient("http://127.0.0.1:1", "key", retry_for=0) as client:
        with pytest.raises(
            ConfigError, match=r"group 1 \(counted from 0\) is of type Trajectory: a step compares runs"
        ):
            await client.submit("agent", [group, run])  # type: ignore[list-item]
        for options in ({"nodes": ["planner"]}, {"retry_credit": "train"}):
            with pytest.raises(ConfigError, match=r"group 0 .* is a GroupRef, which does not say in which node"):
                await client.train_step("agent", [GroupRef(scenario_id="a", trajectories=[])], **options)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match=r"group 0 .* is a GroupRef: leave out advantages="):
            await client.submit("agent", [GroupRef(scenario_id="a", trajectories=[])], advantages={run.id: 1.0})
        scored = group.model_copy(update={"trajectories": [run.model_copy(update={"reward": 1.0})]})
        with pytest.raises(ConfigError, match=f"the run '{run.id}' of the group .* the advantage is nan"):
            await client.submit("agent", [scored], advantages={run.id: float("nan")})
        with pytest.raises(ConfigError, match=r"score=nan of agent@1 is not finite"):
            await client.score_version("agent", 1, float("nan"))
        talk = {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]}
        with pytest.raises(ConfigError, match=r"nodes=\['planner'\] chooses completions of recorded runs"):
            await client.sft("agent", [talk], nodes=["planner"])
