"""`/api/policies/{name}/candidate`: a version is tried on a share of the new rollouts, beside the promoted one."""

from __future__ import annotations

import asyncio
import time

from fastapi import APIRouter, Request

from trainer_server.server.access.request_log import note
from trainer_server.server.dependencies import PolicyDep, ServerDep, get_version, refuse_promoted, refuse_unserved
from trainer_server.server.server import Server
from trainer_server.wire import CanaryCounts, Candidate, CandidateSpec, Conflict, NotFound, NotStored

router = APIRouter(prefix="/api/policies/{name}/candidate", tags=["policies"])


@router.get("")
async def show_candidate(policy: PolicyDep, server: ServerDep) -> CanaryCounts:
    """The candidate, how many rollouts began since, and how many of them it answers."""
    return await _read_counts(server, policy.name)


@router.put("")
async def serve_candidate(spec: CandidateSpec, policy: PolicyDep, server: ServerDep, request: Request) -> CanaryCounts:
    """Tries a version on a share of the rollouts that begin from now on and ask for the policy by its name. Each
    rollout stays with the version that it began with. 409 where no version is promoted, or this one is. The same
    request again changes nothing."""
    name, version = policy.name, spec.version
    note(request.scope, target=f"{name}@{version}, share {spec.share:g}")
    refuse_unserved(server, name)
    async with server.creating[name]:
        await asyncio.to_thread(refuse_promoted, server, name, spec.after)
        beside = server.names.promoted_versions.get(name)
        if beside is None:
            message = f"no version of {name!r} is promoted: promote the one that answers the other rollouts first"
            raise Conflict(message, code="not_promoted", param="name")
        if beside == version:
            raise Conflict(f"{name}@{version} is promoted: it answers all rollouts", code="promoted", param="version")
        present = server.names.candidates.get(name)
        if present is None or (present.version, present.share) != (version, spec.share):
            await asyncio.to_thread(get_version, server, name, version)
            async with server.slots.use((name, version)):  # the engines hold it before a rollout gets it
                candidate = Candidate(
                    version=version,
                    share=spec.share,
                    since=time.time(),
                    beside=beside,
                    promotions=server.store.promotions(name),
                )
                await _try(server, name, candidate)
    return await _read_counts(server, name)


@router.delete("", status_code=204)
async def end_candidate(policy: PolicyDep, server: ServerDep, version: int | None = None) -> None:
    """Ends the trial: new rollouts get the promoted version. Rollouts that began with the candidate keep it. With
    `version`, only the trial of that version ends; 404 where another one is tried. Where none is, nothing happens."""
    name = policy.name
    async with server.creating[name]:
        present = server.names.candidates.get(name)
        if present is not None and version not in (None, present.version):
            raise NotFound(f"{name}@{version} is no candidate: {name}@{present.version} is", code="not_found")
        await _try(server, name, None)


async def _try(server: Server, name: str, candidate: Candidate | None) -> None:
    try:
        await asyncio.to_thread(server.store.try_candidate, name, candidate)
    except OSError as error:
        raise NotStored(f"the candidate could not be written down: {error}", code="disk") from None
    server.names.try_candidate(name, candidate)
    await server.names.announce()


async def _read_counts(server: Server, name: str) -> CanaryCounts:
    rollouts, of_candidate = await asyncio.to_thread(server.canary.counts, name)
    return CanaryCounts(candidate=server.names.candidates.get(name), rollouts=rollouts, taken=of_candidate)
