"""`/health`, `/ready` and `/api/engines`: whether the server can answer, and the state of its engines."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from trainer_server.server.access.auth import authorized
from trainer_server.server.dependencies import ServerDep
from trainer_server.server.server import Server

router = APIRouter(tags=["health"])


@router.get("/health")
async def health(server: ServerDep, request: Request) -> dict[str, object]:
    """Whether completions can be answered now. Holders of the token are also told why not, which engines can, and what
    is wrong with trainer or jobs: reasons quote logs."""
    if not authorized(request.scope):
        return {"ready": server.ready}
    failures = (server.failure, *(engine.failure for engine in server.engines), server.jobs.failure)
    return {
        "ready": server.ready,
        "engines": [engine.ready for engine in server.engines],
        "trainer": server.jobs.process.running,
        **_parsers(server),
        "error": next(filter(None, failures), None),
    }


@router.get("/ready")
async def ready(server: ServerDep, request: Request, response: Response) -> dict[str, object]:
    """Status 200 while completions can be answered, 503 while they cannot: for load balancers and probes. Holders of
    the token are also told which parsers the engines use."""
    response.status_code = 200 if server.ready else 503
    return {"ready": server.ready, **(_parsers(server) if authorized(request.scope) else {})}


def _parsers(server: Server) -> dict[str, object]:
    """The parsers of tool calls and thoughts of the first engine; see Engine.describe. The engines that a server starts
    have the same."""
    described = server.engines[0].describe()
    return {name: described.get(name) for name in ("tool_parser", "reasoning_parser")}


@router.get("/api/engines")
async def engines(server: ServerDep) -> dict[str, object]:
    """Each engine: its address, state, requests under way, and the adapters that it holds."""
    return {"engines": [engine.describe() for engine in server.engines]}
