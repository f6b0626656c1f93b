"""`/metrics`: what Prometheus reads."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request, Response
from prometheus_client.exposition import choose_encoder

from trainer_server.server.dependencies import ServerDep

router = APIRouter(tags=["health"])


@router.get("/metrics")
async def metrics(server: ServerDep, request: Request) -> Response:
    """Requests, completions, tokens, engines, policies, jobs and the last steps, in the format that Prometheus asks
    for."""
    encode, kind = choose_encoder(request.headers.get("accept", ""))
    return Response(await asyncio.to_thread(encode, server.series), media_type=kind)
