"""The control API under `/api`: policies, versions, steps, jobs, completions, rollouts."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Body, Header, Query, Request, Response
from fastapi.responses import StreamingResponse

from trainer_server.gateway.errors import APIError
from trainer_server.jobs.service import NotCancellable
from trainer_server.ledger.sqlite import read_completions
from trainer_server.policies.export import Export, ExportAbandoned, ExportFailed
from trainer_server.policies.retention import VersionInUse
from trainer_server.wire import (
    Completion,
    ExportFormat,
    Fork,
    Job,
    JobList,
    JobStatus,
    Policy,
    PolicySpec,
    Score,
    SFTRequest,
    StepRequest,
    Version,
)

router = APIRouter(prefix="/api")


@router.post("/policies", status_code=201)
async def create_policy(spec: PolicySpec, request: Request, response: Response) -> Policy:
    """Creates a policy with its untrained version 0, or as a fork of another's version. Asked again with the same
    values, it answers the same policy."""
    server = request.app.state.server
    if spec.name == server.identity.base.name:
        raise APIError(400, f"{spec.name!r} is the name of the base model; choose another", param="name")
    if spec.fork_of:
        spec = _forked(request, spec, spec.fork_of)
    if spec.rank > server.config.max_rank:
        raise APIError(
            400,
            f"rank {spec.rank} is above what the engine was started for ({server.config.max_rank}); "
            f"serve with --max-rank {spec.rank}",
            param="rank",
        )
    _refuse_unserved(request, spec.name)
    async with server.creating[spec.name]:
        if (pending := server.trainer.creation(spec.name)) is not None:  # of a request that was cut off
            pending = await server.trainer.wait(pending.id, 600)
            if not pending.status.final:
                raise _being_made(spec.name)
        if (known := server.store.policy(spec.name)) is not None:
            if known.spec != spec:
                raise APIError(
                    409,
                    f"policy {spec.name!r} exists with other values: {known.spec.model_dump_json()}",
                    code="policy_exists",
                    param="name",
                )
            response.status_code = 200
        else:
            if spec.fork_of:
                _version(request, spec.fork_of.policy, spec.fork_of.version)
            try:
                server.store.register(spec, server.identity.base.name, server.fingerprint)
            except OSError as error:
                raise APIError(507, f"policy {spec.name!r} could not be written down: {error}", code="disk") from None
            job = await server.trainer.create(spec)
            job = await server.trainer.wait(job.id, 600)
            if not job.status.final:
                raise _being_made(spec.name)
            if job.error:
                raise APIError(500, f"policy {spec.name!r} could not be made: {job.error}", code="job_failed")
    return _policy(request, spec.name)


def _being_made(name: str) -> APIError:
    return APIError(503, f"policy {name!r} waits for the jobs before it; ask again", code="busy", retry_after=10)


@router.get("/policies")
async def policies(request: Request) -> dict[str, list[Policy]]:
    """All policies."""
    return {"policies": list(request.app.state.server.store.policies())}


@router.get("/policies/{name}")
async def policy(name: str, request: Request) -> Policy:
    """One policy."""
    return _policy(request, name)


@router.get("/policies/{name}/versions")
async def versions(name: str, request: Request) -> dict[str, list[Version]]:
    """All versions of a policy, oldest first."""
    server = request.app.state.server
    _policy(request, name)
    found = [one for number in server.store.versions(name) if (one := server.store.version(name, number))]
    for one in found:
        one.loaded = server.slots.holds((name, one.version))
    return {"versions": found}


@router.get("/policies/{name}/versions/{number}")
async def version(name: str, number: int, request: Request) -> Version:
    """One version."""
    _policy(request, name)
    return _version(request, name, number)


@router.delete("/policies/{name}/versions/{number}", status_code=204)
async def delete_version(name: str, number: int, request: Request) -> None:
    """Deletes an old version: 409 for the newest one and for one that a rollout is using."""
    server = request.app.state.server
    _policy(request, name)
    _version(request, name, number)
    try:
        await server.trainer.retention.delete(name, number)
    except VersionInUse as error:
        raise APIError(409, str(error), code="version_in_use") from None


@router.put("/policies/{name}/versions/{number}/score", status_code=204)
async def score(name: str, number: int, body: Score, request: Request) -> None:
    """Notes how good a version is. The best one of a policy is never deleted to make room."""
    server = request.app.state.server
    _policy(request, name)
    _version(request, name, number)
    try:
        await asyncio.to_thread(server.store.score, name, number, body.score, "evaluation")
    except OSError as error:
        raise APIError(507, f"the score could not be written down: {error}", code="disk") from None


@router.get("/policies/{name}/versions/{number}/export")
async def export(name: str, number: int, request: Request, format: ExportFormat = "peft") -> Response:
    """A version to take away, as a stream in tar format: files without directories, a model card among them."""
    server = request.app.state.server
    _policy(request, name)
    _version(request, name, number)
    try:
        made: Export = await server.exports.make(name, number, format, request.is_disconnected)
    except ExportFailed as error:
        raise APIError(422, str(error), code="export_failed", param="format") from None
    except ExportAbandoned as error:
        raise APIError(499, str(error)) from None
    except OSError as error:
        raise APIError(507, f"{name}@{number} could not be exported: {error}", code="disk") from None
    return StreamingResponse(made.stream(), media_type="application/x-tar", headers={"Content-Length": str(made.size)})


@router.post("/policies/{name}/steps", status_code=202)
async def step(
    name: str,
    body: StepRequest,
    request: Request,
    idempotency_key: Annotated[str | None, Header(max_length=200)] = None,
) -> Job:
    """Queues one training step. The same idempotency key, in the body or the header, answers the same job."""
    return await _train(name, body, request, idempotency_key)


@router.post("/policies/{name}/sft", status_code=202)
async def sft(
    name: str,
    body: SFTRequest,
    request: Request,
    idempotency_key: Annotated[str | None, Header(max_length=200)] = None,
) -> Job:
    """Queues a warm start: the policy's next version imitates demonstrations. Keys as those of steps."""
    return await _train(name, body, request, idempotency_key)


@router.get("/policies/{name}/steps")
async def step_by_key(name: str, idempotency_key: str, request: Request) -> Job:
    """The step or warm start that was made under an idempotency key; 404 when there is none."""
    _policy(request, name)
    found: Job | None = request.app.state.server.trainer.find(name, idempotency_key)
    if found is None:
        raise APIError(404, f"no job of {name!r} has the key {idempotency_key!r}", code="not_found")
    return found


@router.get("/jobs")
async def jobs(
    request: Request, limit: Annotated[int, Query(ge=1, le=1000)] = 100, status: JobStatus | None = None
) -> JobList:
    """Jobs, newest first: at most `limit`; only those with `status`, where it is given."""
    return JobList(jobs=await asyncio.to_thread(request.app.state.server.trainer.jobs, limit, status))


@router.get("/jobs/{job_id}")
async def job(job_id: str, request: Request, wait: Annotated[float, Query(ge=0, le=60)] = 0.0) -> Job:
    """One job; `wait`: seconds to wait for it to become final."""
    found: Job | None = await request.app.state.server.trainer.wait(_job_id(job_id), wait)
    if found is None:
        raise APIError(404, f"there is no job {job_id!r}", code="not_found")
    return found


@router.post("/jobs/{job_id}/cancel")
async def cancel(job_id: str, request: Request) -> Job:
    """Cancels a queued job. 409 for one that the trainer has taken up, or that has ended."""
    try:
        found: Job | None = await request.app.state.server.trainer.cancel(_job_id(job_id))
    except NotCancellable as error:
        raise APIError(409, str(error), code="job_not_queued") from None
    if found is None:
        raise APIError(404, f"there is no job {job_id!r}", code="not_found")
    return found


def _job_id(text: str) -> str:
    """Raises APIError 404 for what is no id of a job: it would be taken as a path."""
    if not text.startswith("job-") or not text.replace("-", "").isalnum():
        raise APIError(404, f"there is no job {text!r}", code="not_found")
    return text


@router.get("/completions/{completion_id}")
async def completion(completion_id: str, request: Request) -> Completion:
    """What the ledger knows about a completion."""
    path = request.app.state.server.ledger.path
    found = await asyncio.to_thread(read_completions, path, [completion_id])
    if completion_id not in found:
        raise APIError(404, f"the ledger has no completion {completion_id!r}", code="not_found")
    return found[completion_id]


@router.delete("/rollouts/{rollout}", status_code=204)
async def release(rollout: str, request: Request) -> None:
    """Ends a rollout's hold on a policy version. Unknown ids are fine: a lease may have expired."""
    request.app.state.server.leases.release({rollout})


@router.post("/rollouts/release", status_code=204)
async def release_all(rollouts: Annotated[set[str], Body()], request: Request) -> None:
    """The same for many rollouts."""
    request.app.state.server.leases.release(rollouts)


async def _train(name: str, body: StepRequest | SFTRequest, request: Request, key: str | None) -> Job:
    _policy(request, name)
    _refuse_unserved(request, name)
    if body.idempotency_key is None and key is not None:
        body = body.model_copy(update={"idempotency_key": key})
    job: Job = await request.app.state.server.trainer.train(name, body)
    return job


def _refuse_unserved(request: Request, name: str) -> None:
    why: str | None = request.app.state.server.names.unserved.get(name)
    if why:
        raise APIError(409, why, code="policy_unserved", param="name")


def _forked(request: Request, spec: PolicySpec, fork: Fork) -> PolicySpec:
    """The spec of a fork, with what it has from its source."""
    source = _policy(request, fork.policy).spec
    _refuse_unserved(request, fork.policy)
    inherited = {field: getattr(source, field) for field in ("rank", "alpha", "targets", "seed")}
    for field, value in inherited.items():
        if field in spec.model_fields_set and getattr(spec, field) != value:
            raise APIError(400, f"a fork of {fork.policy!r} has its {field}, which is {value}", param=field)
    if "temperature" not in spec.model_fields_set:
        inherited["temperature"] = source.temperature
    return spec.model_copy(update=inherited)


def _policy(request: Request, name: str) -> Policy:
    server = request.app.state.server
    found: Policy | None = server.store.policy(name) if server.valid_name(name) else None
    if found is None and name in server.names.unserved:
        raise APIError(404, server.names.unserved[name], code="not_found")
    if found is None:
        known: list[Any] = [one.name for one in server.store.policies()]
        raise APIError(404, f"there is no policy {name!r}; there are: {', '.join(known) or 'none'}", code="not_found")
    return found


def _version(request: Request, name: str, number: int) -> Version:
    server = request.app.state.server
    found: Version | None = server.store.version(name, number)
    if found is None:
        why = server.store.quarantined(name).get(number) or f"policy {name!r} has no version {number}"
        raise APIError(404, why, code="not_found")
    found.loaded = server.slots.holds((name, number))
    return found
