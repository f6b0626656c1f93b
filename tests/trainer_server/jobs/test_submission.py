"""Submission: jobs in the order in which they were accepted, one for each idempotency key."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.homes.job_service import STEP, WARM_START, service_of
from trainer_server.common import Home
from trainer_server.jobs.job_files import JobFile, KeyFile
from trainer_server.jobs.queue import JobQueue
from trainer_server.wire import Conflict, JobKind, PolicySpec


class SlowBoard(JobQueue):
    """Takes its time to write large requests."""

    def accept(self, kind: JobKind, policy: str, **what: Any) -> JobFile:
        file = super().accept(kind, policy, **what)
        time.sleep(0.2 if kind == "sft" else 0.0)
        return file


async def test_jobs_are_accepted_in_the_order_in_which_they_are_done(tmp_path: Path, base_model: Path) -> None:
    home = Home(tmp_path)
    board = SlowBoard(home.jobs)
    service = service_of(board, home, base_model)
    warm = asyncio.create_task(service.train("p", WARM_START))
    while not board.ids():
        await asyncio.sleep(0.01)
    await service.create(PolicySpec(name="q"))
    await warm
    assert list(service.open) == board.ids()


async def test_a_key_makes_one_job_also_after_a_restart(tmp_path: Path, base_model: Path) -> None:
    home = Home(tmp_path)
    request = STEP.model_copy(update={"idempotency_key": "k"})
    service = service_of(JobQueue(home.jobs), home, base_model)
    job = await service.train("p", request)
    other = await service.train("q", request)
    for again in (service, service_of(JobQueue(home.jobs), home, base_model)):
        assert (await again.train("p", request)).id == job.id
        found = again.find("p", "k")
        assert found is not None
        assert found.id == job.id
        assert again.find("p", "other") is None
        with pytest.raises(Conflict, match="was used for another request"):
            await again.train("p", request.model_copy(update={"time_limit": 5.0}))
    assert job.id != other.id


async def test_a_key_of_an_earlier_release_names_its_job(tmp_path: Path, base_model: Path) -> None:
    """A release with more settings writes another digest of the same request."""
    home = Home(tmp_path)
    request = STEP.model_copy(update={"idempotency_key": "k"})
    service = service_of(JobQueue(home.jobs), home, base_model)
    job = await service.train("p", request)
    (key,) = (home.jobs / "keys").iterdir()
    key.write_text(KeyFile(job=job.id, request="of fewer settings").model_dump_json())
    assert (await service.train("p", request)).id == job.id
    with pytest.raises(Conflict):
        await service.train("p", request.model_copy(update={"time_limit": 5.0}))


async def test_a_key_whose_job_was_never_written_makes_a_job(
    tmp_path: Path, base_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server is killed, or its disk is full, between the two files."""
    home = Home(tmp_path)
    request = STEP.model_copy(update={"idempotency_key": "k"})
    board = JobQueue(home.jobs)
    first = board.accept("step", "p", request=request)
    (home.jobs / first.id / "job.json").unlink()
    service = service_of(JobQueue(home.jobs), home, base_model)
    assert service.find("p", "k") is None
    job = await service.train("p", request)
    assert job.id != first.id
    assert (await service.train("p", request)).id == job.id
