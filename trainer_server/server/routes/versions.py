"""`/api/policies/{name}/versions`: versions are listed, scored, exported and deleted."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request, Response
from fastapi.responses import FileResponse, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from trainer_server.engines.adapter_files import FileName, adapter_files
from trainer_server.policies.export import Export, ExportFailed
from trainer_server.policies.retention import VersionInUse
from trainer_server.server.access.request_log import note
from trainer_server.server.dependencies import ServerDep, VersionDep, get_policy, get_version
from trainer_server.wire import (
    AdapterFiles,
    Conflict,
    ExportFormat,
    NotFound,
    NotStored,
    Score,
    Unprocessable,
    Version,
)

router = APIRouter(prefix="/api/policies/{name}/versions", tags=["versions"])

_SEND_TIMEOUT = 600.0
"""Seconds after which a download is ended whose client takes no more bytes."""


class ExportResponse(StreamingResponse):
    """Sends an export, and deletes its files when it is sent, broken off, or not taken by its client."""

    def __init__(self, export: Export) -> None:
        super().__init__(export.stream(), media_type="application/x-tar", headers={"Content-Length": str(export.size)})
        self._export = export

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_in_time(message: Message) -> None:
            async with asyncio.timeout(_SEND_TIMEOUT):
                await send(message)

        try:
            await super().__call__(scope, receive, send_in_time)
        finally:
            await asyncio.shield(asyncio.to_thread(self._export.discard))


@router.get("")
def list_versions(name: str, server: ServerDep) -> dict[str, list[Version]]:
    """All versions of a policy that can be used, oldest first."""
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
async def show_version(version: VersionDep) -> Version:
    """One version."""
    return version


@router.delete("/{number}", status_code=204)
async def delete_version(version: VersionDep, server: ServerDep) -> None:
    """Deletes an old version: 409 for the newest one and for one that a rollout, a job or an export is using; 503 where
    an engine does not give it up."""
    try:
        await server.jobs.retention.delete(version.policy, version.version)
    except VersionInUse as error:
        raise Conflict(str(error), code="version_in_use") from None


@router.put("/{number}/score", status_code=204)
def score_version(name: str, number: int, body: Score, server: ServerDep) -> None:
    """Records how good a version is. The best version of a policy is never deleted to make room."""
    get_version(server, name, number)
    try:
        server.store.score(name, number, body.score)
    except FileNotFoundError as error:
        raise NotFound(str(error), code="not_found") from None
    except OSError as error:
        raise NotStored(f"the score could not be written down: {error}", code="disk") from None


@router.get("/{number}/files")
def list_files(version: VersionDep, server: ServerDep) -> AdapterFiles:
    """The files of a version's adapter, with their checksums: for engines that share no directory with this server."""
    try:
        return adapter_files(server.store.directory(version.policy, version.version))
    except OSError as error:
        raise _files_error(version, error) from None


@router.get("/{number}/files/{file}")
def get_file(version: VersionDep, file: FileName, server: ServerDep) -> FileResponse:
    """One of these files, or the part of it that `Range` asks for. The ETag is its SHA-256."""
    directory = server.store.directory(version.policy, version.version)
    try:
        entry = next(entry for entry in adapter_files(directory).files if entry.name == file)
        path = directory / entry.name
        return FileResponse(path, headers={"ETag": f'"{entry.sha256}"'}, stat_result=path.stat())
    except OSError as error:
        raise _files_error(version, error) from None


@router.get("/{number}/export")
async def export_version(
    version: VersionDep, server: ServerDep, request: Request, format: ExportFormat = "peft"
) -> Response:
    """A version as a stream in tar format: files without directories, a model card among them."""
    name, number = version.policy, version.version
    note(request.scope, target=f"{name}@{number}, {format}")
    try:
        export = await server.exports.make(name, number, format, request.is_disconnected)
    except ExportFailed as error:
        raise Unprocessable(str(error), code="export_failed", param="format") from None
    except OSError as error:
        raise NotStored(f"{name}@{number} could not be exported: {error}", code="disk") from None
    try:
        return ExportResponse(export)
    except BaseException:
        export.discard()
        raise


def _files_error(version: Version, error: OSError) -> NotFound:
    return NotFound(
        f"the files of {version.policy}@{version.version} cannot be read: {error.strerror}", code="not_found"
    )
