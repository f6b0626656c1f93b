"""The finisher: ends every job that was accepted, in order, whatever becomes of one of them."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.versions import publish, slots_over
from trainer_server.engines.pool import Engines
from trainer_server.engines.served_model import resolve
from trainer_server.jobs.board import JobBoard, JobFile, Trained
from trainer_server.jobs.service import NotCancellable, Trainer
from trainer_server.policies.names import PolicyNames
from trainer_server.policies.store import AdapterStore
from trainer_server.server.config import ServerConfig
from trainer_server.wire import Conversation, Home, JobKind, JobStatus, PolicySpec, SFTRequest, StepResult


def trainer_of(board: JobBoard, home: Home, base: Path) -> Trainer:
    """A trainer without engines; what its process would do, the tests do."""
    store, engines = AdapterStore(home.policies), Engines([])
    config = ServerConfig(home=home, model=str(base))
    names = PolicyNames(store)
    return Trainer(
        config=config,
        base=resolve(str(base), home.cache, print),
        tokenizer="t",
        board=board,
        names=names,
        slots=slots_over(store, names, engines),
        engines=engines,
    )


async def test_a_job_that_cannot_be_finished_fails_alone(tmp_path: Path, base_model: Path) -> None:
    home = Home(tmp_path)
    board = JobBoard(home.jobs)
    trainer = trainer_of(board, home, base_model)
    publish(AdapterStore(home.policies), "bad", 0)
    (home.policies / "bad/versions/0/quarantined.json").write_text("{")  # by hand, between two looks of the server
    bad = await trainer.create(PolicySpec(name="bad"))
    lost = await trainer.create(PolicySpec(name="lost"))
    good = await trainer.create(PolicySpec(name="good"))
    board.report(bad.id, Trained(result=StepResult(version=0)))
    board.report(lost.id, Trained(error="out of memory"))
    (home.jobs / lost.id / "job.json").write_text("{")
    board.report(good.id, Trained(error="out of luck"))
    await trainer.start()
    try:
        ended = await trainer.wait(good.id, 20)
        assert ended is not None
        assert (ended.status, ended.error) == (JobStatus.failed, "out of luck")
        failed = board.job(bad.id)
        assert failed is not None
        assert failed.status == JobStatus.failed
        assert "JSONDecodeError" in str(failed.error)
        assert trainer.open_files() == []
        assert [job.id for job in trainer.jobs()] == [good.id, bad.id]
    finally:
        await trainer.stop()


async def test_jobs_that_are_damaged_keep_no_server_from_starting(tmp_path: Path, base_model: Path) -> None:
    home = Home(tmp_path)
    board = JobBoard(home.jobs)
    damaged = board.accept("create", "p", spec=PolicySpec(name="p"))
    (home.jobs / damaged.id / "job.json").write_text("{")
    good = board.accept("create", "q", spec=PolicySpec(name="q"))
    trainer = trainer_of(board, home, base_model)
    assert [file.id for file in trainer.open_files()] == [good.id]


class SlowBoard(JobBoard):
    """Takes its time to write large requests."""

    def accept(self, kind: JobKind, policy: str, **what: Any) -> JobFile:
        file = super().accept(kind, policy, **what)
        time.sleep(0.2 if kind == "sft" else 0.0)
        return file


async def test_jobs_are_finished_in_the_order_in_which_they_are_done(tmp_path: Path, base_model: Path) -> None:
    home = Home(tmp_path)
    board = SlowBoard(home.jobs)
    trainer = trainer_of(board, home, base_model)
    lines = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]
    warm = asyncio.create_task(trainer.train("p", SFTRequest(conversations=[Conversation(messages=lines)])))
    while not board.ids():
        await asyncio.sleep(0.01)
    await trainer.create(PolicySpec(name="q"))
    await warm
    assert [file.id for file in trainer.open_files()] == board.ids()


async def test_a_queued_job_is_cancelled_and_a_running_one_is_not(tmp_path: Path, base_model: Path) -> None:
    home = Home(tmp_path)
    board = JobBoard(home.jobs)
    trainer = trainer_of(board, home, base_model)
    running, queued, last = [await trainer.create(PolicySpec(name=name)) for name in ("running", "queued", "last")]
    board.start(running.id)
    with pytest.raises(NotCancellable, match="is running"):
        await trainer.cancel(running.id)
    assert await trainer.cancel("job-1") is None
    for _ in range(2):
        cancelled = await trainer.cancel(queued.id)
        assert cancelled is not None
        assert cancelled.status == JobStatus.cancelled
        assert "before the trainer took it up" in str(cancelled.error)
    assert [file.id for file in trainer.open_files()] == [running.id, last.id]
    assert [job.id for job in trainer.jobs(status=JobStatus.queued)] == [last.id]
    assert [job.id for job in trainer.jobs(limit=2)] == [last.id, queued.id]
    board.report(running.id, Trained(error="out of luck"))
    await trainer.start()
    try:
        await trainer.wait(running.id, 20)
        with pytest.raises(NotCancellable, match="has failed already"):
            await trainer.cancel(running.id)
        first = await trainer.cancel(last.id)  # the first open one, which the finisher waits for
        assert first is not None
        ended = await trainer.wait(last.id, 20)
        assert ended is not None
        assert ended.status == JobStatus.cancelled
        while trainer.open_files():
            await asyncio.sleep(0.01)
        assert (home.jobs / last.id / "done.json").exists()
    finally:
        await trainer.stop()
