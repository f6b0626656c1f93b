"""What `langgraph dev` loads to record every run: `"http": {"app": "art_langgraph.dev:app"}` in langgraph.json."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from art_langgraph.capture import flush, install


async def captured(_request: Request) -> JSONResponse:
    """Returns once all runs that have ended are in the store."""
    await asyncio.to_thread(flush)
    return JSONResponse({"capture": True})


@asynccontextmanager
async def _lifespan(_app: Starlette) -> AsyncIterator[None]:
    try:
        yield
    finally:
        await asyncio.to_thread(flush)


install()
app = Starlette(routes=[Route("/art/flush", captured, methods=["POST"])], lifespan=_lifespan)
