"""The service ends every job that was accepted, in order, whatever becomes of one of them."""

from __future__ import annotations

import asyncio
import errno
import shutil
from pathlib import Path

import pytest

from tests.support.engines.letters import LettersEngine
from tests.support.homes.job_service import STEP, service_of
from tests.support.homes.versions import publish
from trainer_server.common import Home
from trainer_server.jobs.job_files import TrainingOutcome
from trainer_server.jobs.queue import JobQueue
from trainer_server.jobs.service import JobService
from trainer_server.policies.retention import Retention
from trainer_server.policies.store import AdapterStore
from trainer_server.wire import Job, JobStatus, PolicySpec, StepResult

WARM = 20.0
"""Seconds that a test waits at most."""


async def ended(service: JobService, job_id: str) -> Job:
    job = await service.wait(job_id, WARM)
    assert job is not None
    assert job.status.final, job
    return job


async def test_a_job_that_cannot_be_finished_fails_alone(
    tmp_path: Path, base_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Home(tmp_path)
    board = JobQueue(home.jobs)
    service = service_of(board, home, base_model)

    def forget(policy: str) -> None:
        if policy == "bad":
            raise RuntimeError("nobody expected this")

    monkeypatch.setattr(service.deployment.names, "forget", forget)
    bad = await service.create(PolicySpec(name="bad"))
    lost = await service.create(PolicySpec(name="lost"))
    good = await service.create(PolicySpec(name="good"))
    board.report(bad.id, TrainingOutcome(result=StepResult(version=0)))
    board.report(lost.id, TrainingOutcome(error="out of memory"))
    (home.jobs / lost.id / "job.json").write_text("{")
    board.report(good.id, TrainingOutcome(error="out of luck"))
    service._task.start()
    try:
        job = await ended(service, good.id)
        assert (job.status, job.error) == (JobStatus.failed, "out of luck")
        failed = board.job(bad.id)
        assert failed is not None
        assert (failed.status, failed.error) == (JobStatus.failed, "RuntimeError: nobody expected this")
        damaged = board.job(lost.id)
        assert damaged is not None
        assert damaged.status == JobStatus.failed
        assert "job.json in the server's home cannot be read" in str(damaged.error)
        assert list(service.open) == []
        assert [job.id for job in service.newest()] == [good.id, lost.id, bad.id]
    finally:
        await service._task.stop()


async def test_a_version_that_is_quarantined_while_it_is_made_fails_its_job(tmp_path: Path, base_model: Path) -> None:
    home = Home(tmp_path)
    board = JobQueue(home.jobs)
    service = service_of(board, home, base_model)
    publish(AdapterStore(home.policies), "p", 0)
    (home.policies / "p/versions/0/quarantined.json").write_text("{")  # by hand, between two looks of the server
    job = await service.create(PolicySpec(name="p"))
    board.report(job.id, TrainingOutcome(result=StepResult(version=0)))
    service._task.start()
    try:
        failed = await ended(service, job.id)
        assert "its quarantined.json cannot be read" in str(failed.error)
    finally:
        await service._task.stop()


@pytest.mark.parametrize("when", ["before the trainer", "after the trainer"])
async def test_a_job_whose_directory_is_deleted_stops_no_other(
    tmp_path: Path, base_model: Path, when: str, caplog: pytest.LogCaptureFixture
) -> None:
    home = Home(tmp_path)
    board = JobQueue(home.jobs)
    service = service_of(board, home, base_model)
    deleted = await service.create(PolicySpec(name="deleted"))
    other = await service.create(PolicySpec(name="other"))
    board.report(other.id, TrainingOutcome(error="out of luck"))
    if when == "after the trainer":
        board.report(deleted.id, TrainingOutcome(error="out of memory"))
        shutil.rmtree(home.jobs / deleted.id)
    service._task.start()
    try:
        if when == "before the trainer":
            while service._task._task is None or service.open.first != deleted.id:
                await asyncio.sleep(0.01)
            shutil.rmtree(home.jobs / deleted.id)
        assert (await ended(service, other.id)).error == "out of luck"
        assert await service.wait(deleted.id, 0) is None
        assert not (home.jobs / deleted.id).exists(), "what was deleted is not made again"
        assert f"jobs/{deleted.id} in the server's home was deleted" in caplog.text
    finally:
        await service._task.stop()


class Failing(JobQueue):
    """Fails to write how jobs ended, `times` times."""

    def __init__(self, root: Path, number: int, times: int) -> None:
        super().__init__(root)
        self.number, self.times = number, times

    def finish(self, job: Job) -> None:
        if self.times:
            self.times -= 1
            raise OSError(self.number, "it cannot be written")
        super().finish(job)


@pytest.mark.parametrize(("number", "written"), [(errno.ENOSPC, True), (errno.EMFILE, True), (errno.EACCES, False)])
async def test_errors_that_may_pass_are_waited_for_and_others_are_not(
    tmp_path: Path, base_model: Path, number: int, written: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer_server.jobs.service._RETRY", 0.0)
    home = Home(tmp_path)
    board = Failing(home.jobs, number, times=1)
    service = service_of(board, home, base_model)
    job = await service.create(PolicySpec(name="p"))
    board.report(job.id, TrainingOutcome(error="out of luck"))
    for _ in range(1 + written):
        assert job.id in service.open
        await service.end_next()
    assert job.id not in service.open
    assert (home.jobs / job.id / "done.json").exists() == written


class Stuck(Retention):
    """Waits for an adapter that a request uses, for longer than any test lasts."""

    waits = False

    async def sweep(self, policy: str) -> list[int]:
        self.waits = True
        await asyncio.sleep(600)
        return []


async def test_the_deletion_of_old_versions_holds_up_no_job(
    tmp_path: Path, base_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer_server.jobs.service.Retention", Stuck)
    home = Home(tmp_path)
    board = JobQueue(home.jobs)
    service = service_of(board, home, base_model, keep_versions=1)
    jobs = [await service.create(PolicySpec(name=name)) for name in "ab"]
    for job in jobs:
        board.report(job.id, TrainingOutcome(error="out of luck"))
    service._task.start()
    service.retention.start()
    try:
        for job in jobs:
            await ended(service, job.id)
        async with asyncio.timeout(WARM):
            while not service.retention.waits:  # type: ignore[attr-defined]
                await asyncio.sleep(0.01)
    finally:
        await service._task.stop()
        await service.retention.stop()


async def test_an_error_that_nobody_expected_is_shown_and_outlived(
    tmp_path: Path, base_model: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("trainer_server.process.tasks._PAUSE", 0.0)
    home = Home(tmp_path)
    board = JobQueue(home.jobs)
    service = service_of(board, home, base_model)
    service._task._pause = 0.05
    job = await service.create(PolicySpec(name="p"))
    board.report(job.id, TrainingOutcome(error="out of luck"))
    whole, failures = service.outcome, []

    async def outcome(job_id: str) -> Job | None:
        if not failures:
            failures.append(job_id)
            raise RuntimeError("nobody expected this")
        assert service.failure == "the end of jobs: RuntimeError: nobody expected this"
        return await whole(job_id)

    monkeypatch.setattr(service, "outcome", outcome)
    service._task.start()
    try:
        await ended(service, job.id)
        async with asyncio.timeout(WARM):
            while service.failure is not None:
                await asyncio.sleep(0.01)
        assert "Traceback" in caplog.text
    finally:
        await service._task.stop()


async def test_the_rewards_of_a_step_are_credited_to_the_versions_that_sampled(
    tmp_path: Path, base_model: Path
) -> None:
    home = Home(tmp_path)
    board, store = JobQueue(home.jobs), AdapterStore(home.policies)
    engine = LettersEngine("base")
    await engine.start()
    service = service_of(board, home, base_model, engine)
    for number in range(3):
        publish(store, "p", number)
    metrics = {"reward_by_version": {"0": {"mean": 0.9, "trajectories": 2}, "1": {"mean": 0.1, "trajectories": 6}}}
    for result in (
        StepResult(version=2, metrics=metrics),
        StepResult(version=2, metrics={**metrics, "skipped": "why"}),
    ):
        job = await service.train("p", STEP)
        board.use(job.id, ["t1"])
        board.report(job.id, TrainingOutcome(result=result))
        done = await service.outcome(job.id)
        assert done is not None
        assert done.result is not None
        assert done.result.trajectories == ["t1"]
        await service.outcome(job.id)  # again, after a crash
        await service.open.remove(job.id)
    scores = [record.score for number in range(3) if (record := store.version("p", number))]
    assert scores == [pytest.approx(0.9), pytest.approx(0.1), None]
    assert service.retention.best("p") == 0


async def test_a_server_killed_before_the_end_of_a_job_means_the_version_that_it_answered_with(
    tmp_path: Path, base_model: Path
) -> None:
    """Rollouts had answers of version 1: a server that is started again must not go back to version 0."""
    home = Home(tmp_path)
    board, store = Failing(home.jobs, errno.ENOSPC, times=1), AdapterStore(home.policies)
    engine = LettersEngine("base")
    await engine.start()
    service = service_of(board, home, base_model, engine)
    publish(store, "p", 0)
    service.deployment.names.serve(("p", 0))
    job = await service.train("p", STEP)
    publish(store, "p", 1, job_id=job.id)
    board.use(job.id, ["t1"])
    board.report(job.id, TrainingOutcome(result=StepResult(version=1)))
    again = service_of(JobQueue(home.jobs), home, base_model, engine)
    assert again.served_version("p") == 0, "no engine has taken version 1 yet"
    await service.end_next()
    assert service.deployment.names.resolve("p") == 1
    assert job.id in service.open, "the end is not written down"
    again = service_of(JobQueue(home.jobs), home, base_model, engine)
    assert again.served_version("p") == 1
    again.deployment.names.serve(("p", 1))
    await again.end_next()
    done = again.queue.job(job.id)
    assert done is not None
    assert done.status == JobStatus.succeeded, done.error


async def test_clients_learn_of_an_end_that_cannot_be_written(
    tmp_path: Path, base_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    board = JobQueue(tmp_path / "home" / "jobs")
    file = board.accept("step", "p", request=STEP)
    board.report(file.id, TrainingOutcome(error="no good"))
    service = service_of(board, Home(tmp_path / "home"), base_model)

    def broken(_: Job) -> None:
        raise OSError(errno.EIO, "the disk is broken")

    monkeypatch.setattr(board, "finish", broken)
    service._task.start()
    job = await service.wait(file.id, 10)
    await service._task.stop()
    assert job is not None
    assert (job.status, job.error) == (JobStatus.failed, "no good")
