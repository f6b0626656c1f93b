"""`/api/policies/{name}/versions`: versions are listed, scored, exported and deleted."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse

from trainer_server.policies.export import ExportFailed
from trainer_server.policies.retention import VersionInUse
from trainer_server.server.dependencies import ServerDep, get_policy, get_version
from trainer_server.wire import Conflict, ExportFormat, NotStored, Score, Unprocessable, Version

router = APIRouter(prefix="/api/policies/{name}/versions", tags=["versions"])


@router.get("")
async def list_versions(name: str, server: ServerDep) -> dict[str, list[Version]]:
    """All versions of a policy, oldest first."""
    get_policy(server, name)
    records = (server.store.version(name, number) for number in server.store.versions(name))
    return {
        "versions": [
            record.model_copy(update={"loaded": server.slots.holds((name, record.version))})
            for record in records
            if record is not None
        ]
    }


@router.get("/{number}")
async def show_version(name: str, number: int, server: ServerDep) -> Version:
    """One version."""
    return get_version(server, name, number)


@router.delete("/{number}", status_code=204)
async def delete_version(name: str, number: int, server: ServerDep) -> None:
    """Deletes an old version: 409 for the newest one and for one that a rollout, a job or an export is using."""
    get_version(server, name, number)
    try:
        await server.jobs.retention.delete(name, number)
    except VersionInUse as error:
        raise Conflict(str(error), code="version_in_use") from None


@router.put("/{number}/score", status_code=204)
async def score_version(name: str, number: int, body: Score, server: ServerDep) -> None:
    """Records how good a version is. The best version of a policy is never deleted to make room."""
    get_version(server, name, number)
    try:
        await asyncio.to_thread(server.store.score, name, number, body.score, "evaluation")
    except OSError as error:
        raise NotStored(f"the score could not be written down: {error}", code="disk") from None


@router.get("/{number}/export")
async def export_version(
    name: str, number: int, server: ServerDep, request: Request, format: ExportFormat = "peft"
) -> Response:
    """A version as a stream in tar format: files without directories, a model card among them."""
    get_version(server, name, number)
    try:
        export = await server.exports.make(name, number, format, request.is_disconnected)
    except ExportFailed as error:
        raise Unprocessable(str(error), code="export_failed", param="format") from None
    except OSError as error:
        raise NotStored(f"{name}@{number} could not be exported: {error}", code="disk") from None
    headers = {"Content-Length": str(export.size)}
    return StreamingResponse(export.stream(), media_type="application/x-tar", headers=headers)
