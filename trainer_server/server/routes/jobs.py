"""`/api/jobs`: training jobs are listed, waited for and cancelled."""

from __future__ import annotations

import asyncio
import re
from typing import Annotated

from fastapi import APIRouter, Path, Query

from trainer_server.server.dependencies import ServerDep
from trainer_server.wire import Job, JobList, JobStatus, NotFound

router = APIRouter(prefix="/api/jobs", tags=["jobs"])


@router.get("")
async def list_jobs(
    server: ServerDep, limit: Annotated[int, Query(ge=1, le=1000)] = 100, status: JobStatus | None = None
) -> JobList:
    """Jobs, newest first: at most `limit`; only those with `status`, where it is given. Their results name no
    trajectories; `GET /api/jobs/{id}` does."""
    return JobList(jobs=await asyncio.to_thread(server.jobs.newest, limit, status))


@router.get("/{job_id}")
async def show_job(
    job_id: Annotated[str, Path(max_length=100)], server: ServerDep, wait: Annotated[float, Query(ge=0, le=60)] = 0.0
) -> Job:
    """One job; `wait`: seconds to wait for it to become final."""
    job = await server.jobs.wait(_check_id(job_id), wait)
    if job is None:
        raise NotFound(f"there is no job {job_id!r}", code="not_found")
    return job if job.status.final else job.model_copy(update={"held_up": server.trouble})


@router.post("/{job_id}/cancel")
async def cancel_job(job_id: Annotated[str, Path(max_length=100)], server: ServerDep) -> Job:
    """Cancels a queued or running step or warm start, and answers once it has ended. 409 for one that has ended."""
    return await server.jobs.cancel(_check_id(job_id))


def _check_id(job_id: str) -> str:
    """Raises NotFound for what is no id of a job: ids are names of directories."""
    if not re.fullmatch(r"job-[A-Za-z0-9-]+", job_id):
        raise NotFound(f"there is no job {job_id!r}", code="not_found")
    return job_id
