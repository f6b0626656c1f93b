"""What `langgraph dev` loads to record every run: `"http": {"app": "art_langgraph.dev:app"}` in langgraph.json."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from art_langgraph.capture import flush, install
from trainer_server.wire import ARTError


async def flush_runs(_request: Request) -> JSONResponse:
    """Returns once all runs that have ended are in the store. HTTP 507 says why they are not."""
    try:
        await asyncio.to_thread(flush)
    except ARTError as error:
        return JSONResponse({"capture": False, "error": str(error)}, status_code=507)
    return JSONResponse({"capture": True})


@asynccontextmanager
async def _lifespan(_app: Starlette) -> AsyncIterator[None]:
    try:
        yield
    finally:
        with suppress(ARTError):  # a message says so when the process ends
            await asyncio.to_thread(flush)


install()
app = Starlette(routes=[Route("/art/flush", flush_runs, methods=["POST"])], lifespan=_lifespan)
