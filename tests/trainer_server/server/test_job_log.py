"""The server tells trackers of its jobs. That it does so for real steps is in tests/art_langgraph/loop/watch."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests.support.patience import PATIENCE
from trainer_server.server.job_log import JobLog, check_trackers
from trainer_server.wire import ConfigError, Job, JobKind, JobStatus, StepResult


def job(policy: str, kind: JobKind, status: JobStatus, version: int) -> Job:
    result = StepResult(version=version, metrics={"loss_last": 0.5, "skipped": None})
    return Job(
        id=f"j-{version}", kind=kind, policy=policy, status=status, created=0.0, result=result, seconds={"train": 2.0}
    )


async def test_what_made_a_version_is_told_by_policy(tmp_path: Path) -> None:
    log = JobLog(["jsonl", "langfuse"], tmp_path, "server-1")
    for ended in (
        job("a", "create", JobStatus.succeeded, 0),
        job("a", "sft", JobStatus.succeeded, 1),
        job("a", "step", JobStatus.failed, 2),
        job("b", "step", JobStatus.succeeded, 1),
    ):
        log.log_job(ended)
    await log.close()
    (of_a,), (of_b,) = (list((tmp_path / "progress").glob(f"{policy}-*.jsonl")) for policy in ("a", "b"))
    (row,) = [json.loads(line) for line in of_a.read_text().splitlines()]
    assert (row["step"], row["kind"], row["job"], row["seconds"]) == (1, "sft", "j-1", {"train": 2.0})
    assert row["metrics"]["loss_last"] == 0.5
    assert len(of_b.read_text().splitlines()) == 1


async def test_without_trackers_nothing_is_made(tmp_path: Path) -> None:
    log = JobLog([], tmp_path, "server-1")
    log.log_job(job("a", "step", JobStatus.succeeded, 1))
    await asyncio.wait_for(log.close(), PATIENCE)
    assert list(tmp_path.iterdir()) == []


def test_a_tracker_that_does_not_exist_is_refused_before_anything_starts() -> None:
    check_trackers(["jsonl", "langsmith"])
    with pytest.raises(ConfigError, match="ART_TRACKERS wandbb: there is jsonl, mlflow"):
        check_trackers(["wandbb"])
