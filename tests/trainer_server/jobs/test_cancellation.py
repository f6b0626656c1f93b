"""Jobs that end before they are done: cancelled while they wait or while they run, or taking too long."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.engines.letters import LettersEngine
from tests.support.homes.job_service import STEP, WARM_START, service_of, sleeping_trainer
from tests.support.homes.versions import publish
from tests.support.patience import PATIENCE
from trainer_server.common import Home
from trainer_server.jobs import trainer_process
from trainer_server.jobs.job_files import TrainingOutcome
from trainer_server.jobs.queue import JobQueue
from trainer_server.jobs.service import JobService
from trainer_server.policies.store import AdapterStore
from trainer_server.wire import Conflict, JobStatus, NotFound, NotStored, PolicySpec, StepResult


@asynccontextmanager
async def running(
    home: Home, base: Path, monkeypatch: pytest.MonkeyPatch, **settings: Any
) -> AsyncIterator[tuple[JobService, JobQueue]]:
    """A job service with a trainer process that does nothing: the test does its work."""
    monkeypatch.setattr(trainer_process, "command", lambda _: sleeping_trainer(home))
    engine = LettersEngine("base")
    await engine.start()
    board = JobQueue(home.jobs)
    service = service_of(board, home, base, engine, **settings)
    await service.start()
    try:
        async with asyncio.timeout(PATIENCE):
            while not service.process.ready:
                await asyncio.sleep(0.01)
            yield service, board
    finally:
        await service.stop()


async def test_a_queued_job_is_cancelled(tmp_path: Path, base_model: Path) -> None:
    home = Home(tmp_path)
    board = JobQueue(home.jobs)
    service = service_of(board, home, base_model)
    first, queued, last = [await service.train(name, STEP) for name in ("first", "queued", "last")]
    board.start(first.id)
    with pytest.raises(NotFound, match="there is no job 'job-1'"):
        await service.cancel("job-1")
    for _ in range(2):
        cancelled = await service.cancel(queued.id)
        assert cancelled.status == JobStatus.cancelled
        assert "before the trainer took it up" in str(cancelled.error)
    assert list(service.open) == [first.id, last.id]
    assert [job.id for job in service.newest(status=JobStatus.queued)] == [last.id]
    assert [job.id for job in service.newest(limit=2)] == [last.id, queued.id]
    board.report(first.id, TrainingOutcome(error="out of luck"))
    service._task.start()
    try:
        await service.wait(first.id, 20)
        with pytest.raises(Conflict, match="has failed already"):
            await service.cancel(first.id)
        await service.cancel(last.id)  # the first open one, for which `end_next` waits
        ended = await service.wait(last.id, 20)
        assert ended is not None
        assert ended.status == JobStatus.cancelled
        async with asyncio.timeout(PATIENCE):
            while list(service.open):
                await asyncio.sleep(0.01)
        assert (home.jobs / last.id / "done.json").exists()
    finally:
        await service._task.stop()


async def test_a_running_job_is_cancelled_and_the_next_one_runs(
    tmp_path: Path, base_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Home(tmp_path)
    publish(AdapterStore(home.policies), "p", 0)
    async with running(home, base_model, monkeypatch) as (service, board):
        job = await service.train("p", STEP)
        later = await service.train("p", STEP)
        board.start(job.id)
        trainer = service.process.pid
        cancelled = await service.cancel(job.id)
        assert cancelled.status == JobStatus.cancelled
        assert "while the trainer was at it" in str(cancelled.error)
        while service.process.pid == trainer:
            await asyncio.sleep(0.01)
        assert service.process.restarts == 0, "it did not die of the job"
        board.report(later.id, TrainingOutcome(error="out of luck"))  # the new trainer is at the next job
        ended = await service.wait(later.id, 20)
        assert ended is not None
        assert ended.error == "out of luck"
        done = board.job(job.id)
        assert done is not None
        assert (done.status, done.finished is not None) == (JobStatus.cancelled, True)
        assert (await service.cancel(job.id)).status == JobStatus.cancelled


async def test_a_job_that_made_its_version_is_not_cancelled(
    tmp_path: Path, base_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Home(tmp_path)
    store = AdapterStore(home.policies)
    publish(store, "p", 0)
    async with running(home, base_model, monkeypatch) as (service, board):
        job = await service.train("p", STEP)
        later = await service.train("p", STEP)
        board.start(job.id)
        publish(store, "p", 1, job_id=job.id, made_from=0)
        trainer = service.process.pid
        with pytest.raises(Conflict, match="made its version"):
            await service.cancel(job.id)
        board.report(job.id, TrainingOutcome(result=StepResult(version=1)))
        ended = await service.wait(job.id, 20)
        assert ended is not None
        assert ended.status == JobStatus.succeeded
        with pytest.raises(Conflict, match="has succeeded already"):
            await service.cancel(job.id)
        assert service.process.pid == trainer, "the trainer may be at the next job by now"
        assert (await service.cancel(later.id)).status == JobStatus.cancelled


@pytest.mark.parametrize("limit", ["of the server", "of the request"])
async def test_a_job_that_takes_too_long_fails(
    tmp_path: Path, base_model: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    home = Home(tmp_path)
    publish(AdapterStore(home.policies), "p", 0)
    limits = (0.05, None) if limit == "of the server" else (3600.0, 0.05)
    async with running(home, base_model, monkeypatch, time_limit=limits[0]) as (service, board):
        (home.root / "trainer.json").write_text(json.dumps({"ready": 1.0}))
        job = await service.train("p", STEP.model_copy(update={"time_limit": limits[1]}))
        board.start(job.id)
        ended = await service.wait(job.id, 20)
        assert ended is not None
        assert ended.status == JobStatus.failed
        assert "at this job for more than 0.05 s" in str(ended.error)
        assert "--job-time-limit" in str(ended.error)


class StuckEngine(LettersEngine):
    """Renders until it is broken off."""

    def __init__(self) -> None:
        super().__init__("base")
        self.rendering, self.broken_off = asyncio.Event(), asyncio.Event()

    async def render(self, chat: Mapping[str, Any], *, generation: bool) -> list[int]:
        self.rendering.set()
        try:
            await asyncio.sleep(60)
        finally:
            self.broken_off.set()
        return []


async def test_a_warm_start_that_is_cancelled_is_rendered_no_further(tmp_path: Path, base_model: Path) -> None:
    home = Home(tmp_path)
    engine = StuckEngine()
    await engine.start()
    service = service_of(JobQueue(home.jobs), home, base_model, engine)
    job = await service.train("p", WARM_START)
    service._task.start()
    try:
        await asyncio.wait_for(engine.rendering.wait(), PATIENCE)
        waiting = asyncio.create_task(service.wait(job.id, 60))
        await asyncio.sleep(0.05)
        await service.cancel(job.id)
        ended = await asyncio.wait_for(waiting, PATIENCE)
        assert ended is not None
        assert ended.status == JobStatus.cancelled
        await asyncio.wait_for(engine.broken_off.wait(), PATIENCE)
        async with asyncio.timeout(PATIENCE):
            while list(service.open):
                await asyncio.sleep(0.01)
        assert '"cancelled"' in (home.jobs / job.id / "done.json").read_text()
    finally:
        await service._task.stop()


async def test_a_cancelled_job_stays_cancelled_whatever_its_rendering_says(tmp_path: Path, base_model: Path) -> None:
    home = Home(tmp_path)
    board = JobQueue(home.jobs)
    service = service_of(board, home, base_model)
    job = await service.train("p", WARM_START)
    await service.cancel(job.id)
    board.report(job.id, TrainingOutcome(error="the template does not render conversation 0"))
    trained = board.training_outcome(job.id)
    assert trained is not None
    assert trained.cancelled
    ended = await service.outcome(job.id)
    assert ended is not None
    assert ended.status == JobStatus.cancelled


async def test_the_making_of_a_policy_is_not_cancelled(tmp_path: Path, base_model: Path) -> None:
    home = Home(tmp_path)
    service = service_of(JobQueue(home.jobs), home, base_model)
    job = await service.create(PolicySpec(name="p"))
    with pytest.raises(Conflict, match="makes the policy 'p'"):
        await service.cancel(job.id)
    assert [one.status for one in service.newest()] == [JobStatus.queued]


class FullBoard(JobQueue):
    def cancel(self, job_id: str) -> bool:
        raise OSError(28, "No space left on device")


async def test_a_cancellation_that_finds_no_space_is_said(tmp_path: Path, base_model: Path) -> None:
    home = Home(tmp_path)
    service = service_of(FullBoard(home.jobs), home, base_model)
    job = await service.train("p", STEP)
    with pytest.raises(NotStored, match="No space left") as refused:
        await service.cancel(job.id)
    assert refused.value.code == "disk"


async def test_a_job_that_is_cancelled_twice_at_once_ends_one_trainer(
    tmp_path: Path, base_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Home(tmp_path)
    publish(AdapterStore(home.policies), "p", 0)
    async with running(home, base_model, monkeypatch) as (service, board):
        job = await service.train("p", STEP)
        board.start(job.id)
        trainers = {service.process.pid}
        both = await asyncio.gather(*(service.cancel(job.id) for _ in range(2)))
        assert [one.status for one in both] == [JobStatus.cancelled] * 2
        async with asyncio.timeout(PATIENCE):
            while service.process.pid in trainers or list(service.open):
                await asyncio.sleep(0.01)
        trainers.add(service.process.pid)
        assert len(trainers) == 2
        assert service.process.running
