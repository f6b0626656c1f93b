"""`/api/policies/{name}/steps` and `/sft` queue training jobs; `/api/jobs` lists, waits for and cancels them."""

from __future__ import annotations

import asyncio
import re
from typing import Annotated

from fastapi import APIRouter, Header, Path, Query, Request

from trainer_server.ledger.base import ErasesCompletions
from trainer_server.server.access.request_log import note
from trainer_server.server.dependencies import ServerDep, get_policy, refuse_unserved
from trainer_server.server.server import Server
from trainer_server.wire import Job, JobList, JobStatus, NotFound, SFTRequest, StepRequest

router = APIRouter(prefix="/api/policies/{name}", tags=["training"])

IdempotencyKey = Annotated[str | None, Header(max_length=200)]


@router.post("/steps", status_code=202)
async def queue_step(
    name: str, body: StepRequest, server: ServerDep, request: Request, idempotency_key: IdempotencyKey = None
) -> Job:
    """Queues one training step. The same idempotency key, in the body or the header, answers the same job."""
    return await _queue(server, request, name, body, idempotency_key)


@router.post("/sft", status_code=202)
async def queue_sft(
    name: str, body: SFTRequest, server: ServerDep, request: Request, idempotency_key: IdempotencyKey = None
) -> Job:
    """Queues a warm start: the policy's next version imitates demonstrations. The same idempotency key, in the body or
    the header, answers the same job."""
    return await _queue(server, request, name, body, idempotency_key)


@router.get("/steps")
def find_step(name: str, idempotency_key: str, server: ServerDep) -> Job:
    """The step or warm start that was made under an idempotency key; 404 when there is none."""
    get_policy(server, name)
    job = server.jobs.find(name, idempotency_key)
    if job is None:
        raise NotFound(f"no job of {name!r} has the key {idempotency_key!r}", code="not_found")
    return job


async def _queue(server: Server, request: Request, name: str, body: StepRequest | SFTRequest, key: str | None) -> Job:
    await asyncio.to_thread(get_policy, server, name)
    refuse_unserved(server, name)
    if key and not body.idempotency_key:  # an empty one is none
        body = body.model_copy(update={"idempotency_key": key})
    evaluations = await asyncio.to_thread(_evaluations, server, body) if isinstance(body, StepRequest) else frozenset()
    job = await server.jobs.train(name, body, evaluations)
    note(request.scope, target=f"{name}, {job.id}")
    return job


def _evaluations(server: Server, step: StepRequest) -> frozenset[str]:
    """Ids of the step's completions whose rollouts evaluate a version."""
    ids = [id for group in step.groups for reference in group.trajectories for id in reference.completions]
    if isinstance(server.ledger, ErasesCompletions):  # it knows the rollouts without reading tokens
        rollout_of = server.ledger.matching(completions=ids)
    else:
        rollout_of = {id: completion.rollout for id, completion in server.ledger.read(ids).items()}
    evaluating = server.rollouts.evaluations([*{rollout for rollout in rollout_of.values() if rollout is not None}])
    return frozenset(id for id, rollout in rollout_of.items() if rollout in evaluating)


jobs_router = APIRouter(prefix="/api/jobs", tags=["jobs"])


@jobs_router.get("")
async def list_jobs(
    server: ServerDep, limit: Annotated[int, Query(ge=1, le=1000)] = 100, status: JobStatus | None = None
) -> JobList:
    """Jobs, newest first: at most `limit`; only those with `status`, where it is given. Their results name no
    trajectories; `GET /api/jobs/{id}` does."""
    return JobList(jobs=await asyncio.to_thread(server.jobs.newest, limit, status))


@jobs_router.get("/{job_id}")
async def show_job(
    job_id: Annotated[str, Path(max_length=100)], server: ServerDep, wait: Annotated[float, Query(ge=0, le=60)] = 0.0
) -> Job:
    """One job; `wait`: seconds to wait for it to become final."""
    job = await server.jobs.wait(_check_id(job_id), wait)
    if job is None:
        raise NotFound(f"there is no job {job_id!r}", code="not_found")
    return job if job.status.final else job.model_copy(update={"held_up": server.trouble})


@jobs_router.post("/{job_id}/cancel")
async def cancel_job(job_id: Annotated[str, Path(max_length=100)], server: ServerDep) -> Job:
    """Cancels a queued or running step or warm start, and answers once it has ended. 409 for one that has ended."""
    return await server.jobs.cancel(_check_id(job_id))


def _check_id(job_id: str) -> str:
    """Raises NotFound for what is no id of a job: ids are names of directories."""
    if not re.fullmatch(r"job-[A-Za-z0-9-]+", job_id):
        raise NotFound(f"there is no job {job_id!r}", code="not_found")
    return job_id
