"""The finisher: ends every job that was accepted, in order, whatever becomes of one of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.letters_engine import LettersEngine
from tests.support.versions import publish, slots_over
from trainer_server.engines.base import Engine
from trainer_server.engines.pool import Engines
from trainer_server.engines.served_model import resolve
from trainer_server.jobs.board import JobBoard, JobFile, Trained
from trainer_server.jobs.service import JobService
from trainer_server.jobs.supervisor import TrainerSettings
from trainer_server.ledger.sqlite import SQLiteLedger
from trainer_server.policies.names import PolicyNames
from trainer_server.policies.store import AdapterStore
from trainer_server.wire import (
    Conflict,
    Conversation,
    GroupRef,
    Home,
    JobKind,
    JobStatus,
    NotFound,
    NotStored,
    PolicySpec,
    SFTRequest,
    StepRequest,
    StepResult,
)

STEP = StepRequest(groups=[GroupRef(scenario_id="s", trajectories=[])])
LINES = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]
WARM_START = SFTRequest(conversations=[Conversation(messages=LINES)])


def service_of(board: JobBoard, home: Home, base: Path, *engine: Engine) -> JobService:
    """A job service, without engines unless they are given; what the trainer process would do, the tests do."""
    store, engines = AdapterStore(home.policies), Engines(engine)
    names = PolicyNames(store)
    return JobService(
        TrainerSettings(home=home, base=resolve(str(base), home.cache, print), tokenizer="t"),
        board=board,
        store=store,
        names=names,
        slots=slots_over(store, names, engines),
        engines=engines,
        ledger=SQLiteLedger(home.ledger),
    )


async def test_a_job_that_cannot_be_finished_fails_alone(tmp_path: Path, base_model: Path) -> None:
    home = Home(tmp_path)
    board = JobBoard(home.jobs)
    service = service_of(board, home, base_model)
    publish(AdapterStore(home.policies), "bad", 0)
    (home.policies / "bad/versions/0/quarantined.json").write_text("{")  # by hand, between two looks of the server
    bad = await service.create(PolicySpec(name="bad"))
    lost = await service.create(PolicySpec(name="lost"))
    good = await service.create(PolicySpec(name="good"))
    board.report(bad.id, Trained(result=StepResult(version=0)))
    board.report(lost.id, Trained(error="out of memory"))
    (home.jobs / lost.id / "job.json").write_text("{")
    board.report(good.id, Trained(error="out of luck"))
    await service.start()
    try:
        ended = await service.wait(good.id, 20)
        assert ended is not None
        assert (ended.status, ended.error) == (JobStatus.failed, "out of luck")
        failed = board.job(bad.id)
        assert failed is not None
        assert failed.status == JobStatus.failed
        assert "JSONDecodeError" in str(failed.error)
        assert service.open_files() == []
        assert [job.id for job in service.jobs()] == [good.id, bad.id]
    finally:
        await service.stop()


async def test_jobs_that_are_damaged_keep_no_server_from_starting(tmp_path: Path, base_model: Path) -> None:
    home = Home(tmp_path)
    board = JobBoard(home.jobs)
    damaged = board.accept("create", "p", spec=PolicySpec(name="p"))
    (home.jobs / damaged.id / "job.json").write_text("{")
    good = board.accept("create", "q", spec=PolicySpec(name="q"))
    service = service_of(board, home, base_model)
    assert [file.id for file in service.open_files()] == [good.id]


class SlowBoard(JobBoard):
    """Takes its time to write large requests."""

    def accept(self, kind: JobKind, policy: str, **what: Any) -> JobFile:
        file = super().accept(kind, policy, **what)
        time.sleep(0.2 if kind == "sft" else 0.0)
        return file


async def test_jobs_are_finished_in_the_order_in_which_they_are_done(tmp_path: Path, base_model: Path) -> None:
    home = Home(tmp_path)
    board = SlowBoard(home.jobs)
    service = service_of(board, home, base_model)
    warm = asyncio.create_task(service.train("p", WARM_START))
    while not board.ids():
        await asyncio.sleep(0.01)
    await service.create(PolicySpec(name="q"))
    await warm
    assert [file.id for file in service.open_files()] == board.ids()


async def test_a_queued_job_is_cancelled_and_a_running_one_is_not(tmp_path: Path, base_model: Path) -> None:
    home = Home(tmp_path)
    board = JobBoard(home.jobs)
    service = service_of(board, home, base_model)
    running, queued, last = [await service.train(name, STEP) for name in ("running", "queued", "last")]
    board.start(running.id)
    with pytest.raises(Conflict, match="is running"):
        await service.cancel(running.id)
    with pytest.raises(NotFound, match="there is no job 'job-1'"):
        await service.cancel("job-1")
    for _ in range(2):
        cancelled = await service.cancel(queued.id)
        assert cancelled.status == JobStatus.cancelled
        assert "before the trainer took it up" in str(cancelled.error)
    assert [file.id for file in service.open_files()] == [running.id, last.id]
    assert [job.id for job in service.jobs(status=JobStatus.queued)] == [last.id]
    assert [job.id for job in service.jobs(limit=2)] == [last.id, queued.id]
    board.report(running.id, Trained(error="out of luck"))
    await service.start()
    try:
        await service.wait(running.id, 20)
        with pytest.raises(Conflict, match="has failed already"):
            await service.cancel(running.id)
        await service.cancel(last.id)  # the first open one, which the finisher waits for
        ended = await service.wait(last.id, 20)
        assert ended is not None
        assert ended.status == JobStatus.cancelled
        while service.open_files():
            await asyncio.sleep(0.01)
        assert (home.jobs / last.id / "done.json").exists()
    finally:
        await service.stop()


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
    service = service_of(JobBoard(home.jobs), home, base_model, engine)
    job = await service.train("p", WARM_START)
    service._finisher = asyncio.create_task(service._finish_jobs())
    try:
        await asyncio.wait_for(engine.rendering.wait(), 10)
        waiting = asyncio.create_task(service.wait(job.id, 60))
        await asyncio.sleep(0.05)
        await service.cancel(job.id)
        ended = await asyncio.wait_for(waiting, 5)
        assert ended is not None
        assert ended.status == JobStatus.cancelled
        await asyncio.wait_for(engine.broken_off.wait(), 5)
        async with asyncio.timeout(5):
            while service.open_files():
                await asyncio.sleep(0.01)
        assert '"cancelled"' in (home.jobs / job.id / "done.json").read_text()
    finally:
        await service.stop()


async def test_a_cancelled_job_stays_cancelled_whatever_its_rendering_says(tmp_path: Path, base_model: Path) -> None:
    home = Home(tmp_path)
    board = JobBoard(home.jobs)
    service = service_of(board, home, base_model)
    job = await service.train("p", WARM_START)
    await service.cancel(job.id)
    board.report(job.id, Trained(error="the template does not render conversation 0"))
    trained = board.trained(job.id)
    assert trained is not None
    assert trained.cancelled
    ended = await service._outcome(job.id)
    assert ended is not None
    assert ended.status == JobStatus.cancelled


async def test_the_making_of_a_policy_is_not_cancelled(tmp_path: Path, base_model: Path) -> None:
    home = Home(tmp_path)
    service = service_of(JobBoard(home.jobs), home, base_model)
    job = await service.create(PolicySpec(name="p"))
    with pytest.raises(Conflict, match="makes the policy 'p'"):
        await service.cancel(job.id)
    assert [one.status for one in service.jobs()] == [JobStatus.queued]


class FullBoard(JobBoard):
    def cancel(self, job_id: str) -> bool:
        raise OSError(28, "No space left on device")


async def test_a_cancellation_that_finds_no_space_is_said(tmp_path: Path, base_model: Path) -> None:
    home = Home(tmp_path)
    service = service_of(FullBoard(home.jobs), home, base_model)
    job = await service.train("p", STEP)
    with pytest.raises(NotStored, match="No space left") as refused:
        await service.cancel(job.id)
    assert refused.value.code == "disk"
