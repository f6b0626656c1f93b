"""The jobs that have not ended, as a server finds them at its start."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainer_server.common import Home
from trainer_server.jobs.open_jobs import OpenJobs
from trainer_server.jobs.queue import JobQueue
from trainer_server.ledger.sqlite import SQLiteLedger
from trainer_server.wire import Job, JobStatus, PolicySpec


def test_jobs_that_are_damaged_keep_no_server_from_starting(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    home = Home(tmp_path)
    board = JobQueue(home.jobs)
    damaged = board.accept("create", "p", spec=PolicySpec(name="p"))
    (home.jobs / damaged.id / "job.json").write_text("{")
    good = board.accept("create", "q", spec=PolicySpec(name="q"))
    open_jobs = OpenJobs(board, SQLiteLedger(home.ledger))
    assert [file.id for file in open_jobs.files()] == [good.id]
    assert f"left out: jobs/{damaged.id}/job.json" in caplog.text


class Counting(JobQueue):
    """Notes which jobs' files are read."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.read: list[str] = []

    def file(self, job_id: str):  # type: ignore[no-untyped-def]
        self.read.append(job_id)
        return super().file(job_id)


def test_a_start_reads_open_jobs_only(tmp_path: Path) -> None:
    home = Home(tmp_path)
    board = JobQueue(home.jobs)
    for number in range(3):
        file = board.accept("create", f"p{number}", spec=PolicySpec(name=f"p{number}"))
        if number < 2:
            board.finish(Job(id=file.id, kind="create", policy=file.policy, created=0.0, status=JobStatus.succeeded))
    counting = Counting(home.jobs)
    assert list(OpenJobs(counting, SQLiteLedger(home.ledger))) == counting.read == [file.id]
