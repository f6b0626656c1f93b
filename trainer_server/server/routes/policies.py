"""`/api/policies`: policies are created and listed, and their versions promoted."""

from __future__ import annotations

import asyncio
import logging
import time

from fastapi import APIRouter, Request, Response

from trainer_server.engines.vllm.command import experts_refusal
from trainer_server.gateway.errors import APIError
from trainer_server.server.access.request_log import note
from trainer_server.server.dependencies import (
    PolicyDep,
    ServerDep,
    get_policy,
    get_version,
    refuse_promoted,
    refuse_unserved,
)
from trainer_server.server.erasure import erase_policy
from trainer_server.server.server import Server
from trainer_server.wire import Conflict, Erased, Fork, NotFound, NotStored, Policy, PolicySpec, Promotion
from trainer_server.wire.policies import EXPERTS

log = logging.getLogger("trainer_server")

router = APIRouter(prefix="/api/policies", tags=["policies"])

_CREATION = 600.0
"""Seconds that a request waits for its policy to be made."""
_POLL_INTERVAL = 2.0
"""Seconds after which such a request looks whether the trainer works."""
_MOST_RESTARTS = 3
"""Starts of the trainer in vain after which such a request waits no longer."""


@router.post("", status_code=201)
async def create_policy(spec: PolicySpec, server: ServerDep, request: Request, response: Response) -> Policy:
    """Creates a policy with its untrained version 0, or as a fork of another policy's version. The same request again
    answers the same policy."""
    source = f" as a fork of {spec.fork_of.policy}@{spec.fork_of.version}" if spec.fork_of else ""
    note(request.scope, target=f"{spec.name}{source}")
    if spec.name == server.identity.base.name:
        message = f"{spec.name!r} is the name of the base model; choose another"
        log.warning("a policy was not created: %s", message)
        raise APIError(400, message, param="name")
    if spec.fork_of:
        spec = await asyncio.to_thread(_complete_fork, server, spec, spec.fork_of)
    if spec.rank > server.config.max_rank:
        raise APIError(
            400,
            f"rank {spec.rank} is above what the engine was started for ({server.config.max_rank}); "
            f"serve with --max-rank {spec.rank}",
            param="rank",
        )
    experts_here = EXPERTS in spec.targets and not server.config.engine_urls
    if experts_here and (why := experts_refusal(server.identity.base, server.config.engine_args)):
        raise APIError(400, why, param="targets")
    async with server.creating[spec.name]:
        refuse_unserved(server, spec.name)
        if await asyncio.to_thread(server.store.deleted, spec.name):
            raise Conflict(
                f"a policy {spec.name!r} was deleted, and engines may remember its prompts: choose another name",
                code="policy_deleted",
                param="name",
            )
        if (pending := server.jobs.creation(spec.name)) is not None:  # of a request whose client went away
            await _wait(server, pending.id, spec.name)
        if (policy := await asyncio.to_thread(server.store.policy, spec.name)) is None:
            await _make(server, spec)
        elif policy.spec == _with_targets_of(policy.spec, spec):
            response.status_code = 200
        else:
            raise Conflict(
                f"policy {spec.name!r} exists with other values: {_difference(policy.spec, spec)}. Take another "
                "name, or leave these out",
                code="policy_exists",
                param="name",
            )
    return await asyncio.to_thread(get_policy, server, spec.name)


def _with_targets_of(old: PolicySpec, spec: PolicySpec) -> PolicySpec:
    """A spec with the targets of a policy, unless it names others: what they are by default has grown."""
    return spec if "targets" in spec.model_fields_set else spec.model_copy(update={"targets": old.targets})


def _difference(old: PolicySpec, new: PolicySpec) -> str:
    """The values of a policy that are not those of a request."""
    ours, theirs = old.model_dump(mode="json"), new.model_dump(mode="json")
    return ", ".join(f"{name} is {ours[name]!r}, not {theirs[name]!r}" for name in ours if ours[name] != theirs[name])


@router.get("")
def list_policies(server: ServerDep) -> dict[str, list[Policy]]:
    """All policies."""
    return {"policies": list(server.store.policies())}


@router.get("/{name}")
async def show_policy(policy: PolicyDep) -> Policy:
    """One policy."""
    return policy


@router.delete("/{name}")
async def delete_policy(name: str, server: ServerDep) -> Erased:
    """Deletes a policy: its versions, its jobs, and all runs in which it answered, with their completions, rewards and
    traces. 409 while a job, a rollout or an export needs it. The name stays taken."""
    return await erase_policy(server, name)


@router.put("/{name}/promotion")
async def promote_version(promotion: Promotion, policy: PolicyDep, server: ServerDep, request: Request) -> Policy:
    """Promotes a version: the policy's name means it from now on, and `name@latest` the newest one. Without a version,
    the name means the newest again. A trial of a candidate ends. Rollouts that have begun keep their version."""
    name, version = policy.name, promotion.version
    before = server.names.promoted_versions.get(name)
    note(request.scope, target=f"{_version_label(name, version)} (before: {_version_label(name, before)})")
    refuse_unserved(server, name)
    async with server.creating[name]:
        await asyncio.to_thread(refuse_promoted, server, name, promotion.after)
        try:
            if version is None:
                await _promote(server, name, None)
            else:
                await asyncio.to_thread(get_version, server, name, version)
                async with server.slots.use((name, version)):  # the engines hold it before the name means it
                    await _promote(server, name, version)
        except FileNotFoundError as error:
            raise NotFound(str(error), code="not_found") from None
        except OSError as error:
            raise NotStored(f"the promotion could not be written down: {error}", code="disk") from None
    return await asyncio.to_thread(get_policy, server, name)


def _version_label(name: str, version: int | None) -> str:
    return f"{name}@{'latest' if version is None else version}"


async def _promote(server: Server, name: str, version: int | None) -> None:
    await asyncio.to_thread(server.store.promote, name, version)
    server.names.promote(name, version)
    await server.names.announce()


async def _make(server: Server, spec: PolicySpec) -> None:
    if spec.fork_of:
        await asyncio.to_thread(get_version, server, spec.fork_of.policy, spec.fork_of.version)
    try:
        await asyncio.to_thread(server.store.register, spec, server.identity.base.name, server.fingerprint)
    except OSError as error:
        raise NotStored(f"policy {spec.name!r} could not be written down: {error}", code="disk") from None
    job = await server.jobs.create(spec)
    if why := await _wait(server, job.id, spec.name):
        raise APIError(500, f"policy {spec.name!r} could not be made: {why}", code="job_failed")


async def _wait(server: Server, job_id: str, name: str) -> str | None:
    """Waits until a job is final; returns its error. Raises APIError 503 where that takes too long, or the trainer does
    not start."""
    deadline = time.monotonic() + _CREATION
    while time.monotonic() < deadline:
        job = await server.jobs.wait(job_id, _POLL_INTERVAL)
        if job is None:
            return f"jobs/{job_id} in the server's home was deleted meanwhile; send the request again"
        if job.status.final:
            return job.error
        trainer = server.jobs.process
        if trainer.failure and trainer.consecutive_restarts >= _MOST_RESTARTS:
            raise APIError(503, f"policy {name!r} cannot be made now: {trainer.failure}", code="trainer_not_ready")
    raise APIError(503, f"policy {name!r} waits for the jobs before it; ask again", code="busy", retry_after=10)


def _complete_fork(server: Server, spec: PolicySpec, fork: Fork) -> PolicySpec:
    """The spec of a fork, completed by what it takes from its source."""
    source = get_policy(server, fork.policy).spec
    refuse_unserved(server, fork.policy)
    values = {field: getattr(source, field) for field in ("rank", "alpha", "targets", "seed")}
    for field, value in values.items():
        if field in spec.model_fields_set and getattr(spec, field) != value:
            raise APIError(400, f"a fork of {fork.policy!r} has its {field}, which is {value}", param=field)
    if "temperature" not in spec.model_fields_set:
        values["temperature"] = source.temperature
    return spec.model_copy(update=values)
