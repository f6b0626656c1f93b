"""`/health`, `/ready`, `/api/engines`, `/metrics`: whether the server can answer, and what it works on; and
`/api/token`: what the token of a request is for."""

from __future__ import annotations

import asyncio
from importlib.metadata import version

from fastapi import APIRouter, Request, Response
from prometheus_client.exposition import choose_encoder

from trainer_server.common import TokenInfo
from trainer_server.engines.base import CountsSeconds, Engine
from trainer_server.server.access.auth import authorized
from trainer_server.server.access.scopes import token_of
from trainer_server.server.access.tokens import Scope
from trainer_server.server.dependencies import ServerDep
from trainer_server.server.server import Server
from trainer_server.wire import EngineError

router = APIRouter(tags=["health"])


@router.get("/health")
async def health(server: ServerDep, request: Request) -> dict[str, object]:
    """Whether completions can be answered now. Holders of a token are also told which engines can, how many requests
    they compute at once (`concurrency`; null where one does not say), whether engines and trainer have GPUs of their
    own and compute at the same time (`overlaps`), how many GPUs are paid for at which price, and whether this server is
    the one of its fleet that trains. Those of scope train are told what is wrong with engines, trainer or jobs: reasons
    quote logs."""
    token = token_of(request.scope)
    if token is None:
        return {"ready": server.ready}
    return {
        "ready": server.ready,
        "engines": [engine.ready for engine in server.engines],
        "concurrency": _concurrency(server),
        "leads": server.config.trains,
        "trainer": server.jobs.process.running,
        **_parsers(server),
        "overlaps": server.overlaps,
        "gpus": server.gpus,
        "gpu_hour_price": server.config.gpu_hour_price,
        "error": server.trouble if token.scope.covers(Scope.train) else None,
    }


@router.get("/ready")
async def ready(server: ServerDep, request: Request, response: Response) -> dict[str, object]:
    """Status 200 while completions can be answered, 503 while they cannot: for load balancers and probes. Holders of
    the token are also told which parsers the engines use."""
    response.status_code = 200 if server.ready else 503
    return {"ready": server.ready, **(_parsers(server) if authorized(request.scope) else {})}


def _concurrency(server: Server) -> int | None:
    counts: list[int | None] = [engine.describe().get("max_num_seqs") for engine in server.engines]
    known_counts = [count for count in counts if count is not None]
    return min(sum(known_counts), server.admission.most) if len(known_counts) == len(counts) else None


def _parsers(server: Server) -> dict[str, object]:
    """The parsers of tool calls and thoughts of the first engine; see Engine.describe. The engines that a server starts
    have the same."""
    facts = server.engines[0].describe() if server.engines else {}
    return {name: facts.get(name) for name in ("tool_parser", "reasoning_parser")}


@router.get("/api/engines")
async def engines(server: ServerDep, request_seconds: bool = False) -> dict[str, object]:
    """Each engine: its address, state, requests under way, and the adapters that it holds. With `request_seconds`, also
    the seconds that finished requests have spent in it, by phase; null where the engine is not ready or does not count
    them."""
    rows = [engine.describe() for engine in server.engines]
    if request_seconds:
        for row, seconds in zip(rows, await asyncio.gather(*map(_request_seconds, server.engines)), strict=True):
            row["request_seconds"] = seconds
    return {"engines": rows}


async def _request_seconds(engine: Engine) -> dict[str, float] | None:
    try:
        return await engine.request_seconds() if isinstance(engine, CountsSeconds) and engine.ready else None
    except EngineError:
        return None


@router.get("/metrics")
async def metrics(server: ServerDep, request: Request) -> Response:
    """Requests, completions, tokens, engines, policies, jobs and the last steps, in the format that Prometheus asks
    for."""
    encode, kind = choose_encoder(request.headers.get("accept", ""))
    return Response(await asyncio.to_thread(encode, server.series), media_type=kind)


token_router = APIRouter(prefix="/api/token", tags=["tokens"])
"""Tokens are created by commands on the server's machine, never over HTTP."""


@token_router.get("")
async def show_token(request: Request) -> TokenInfo:
    """Name, owner, scope and expiry of the token that asks, and the server's version."""
    token = token_of(request.scope)
    assert token is not None, "the route has a scope"
    facts = token.model_dump(include={"name", "owner", "scope", "expires"})
    return TokenInfo(**facts, version=version("art-langgraph"))
