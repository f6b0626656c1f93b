"""`/health` and `/api/engines`: whether the server can answer, and the state of its engines."""

from __future__ import annotations

from fastapi import APIRouter

from trainer_server.server.dependencies import ServerDep

router = APIRouter(tags=["health"])


@router.get("/health")
async def health(server: ServerDep) -> dict[str, object]:
    """Whether completions can be answered now, and why not; which engines can; what is wrong with trainer or jobs."""
    failures = (server.failure, *(engine.failure for engine in server.engines), server.jobs.failure)
    return {
        "ready": server.ready,
        "engines": [engine.ready for engine in server.engines],
        "trainer": server.jobs.process.running,
        "error": next(filter(None, failures), None),
    }


@router.get("/api/engines")
async def engines(server: ServerDep) -> dict[str, object]:
    """Each engine: its address, state, requests under way, and the adapters that it holds."""
    return {"engines": [engine.describe() for engine in server.engines]}
