"""`/api/policies/{name}/steps` and `/sft`: training jobs are queued."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Header, Request

from trainer_server.ledger.base import ErasesCompletions
from trainer_server.server.access.request_log import note
from trainer_server.server.dependencies import ServerDep, get_policy, refuse_unserved
from trainer_server.server.server import Server
from trainer_server.wire import Job, NotFound, SFTRequest, StepRequest

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
