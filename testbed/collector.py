"""A collector of OpenTelemetry that forgets what it is sent.

python -m testbed.collector PORT
"""

from __future__ import annotations

import sys

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route


def make_app() -> Starlette:
    """Takes spans at `/v1/traces`; `/health` says how many bytes of them there were."""
    taken = {"bytes": 0}

    async def take(request: Request) -> Response:
        taken["bytes"] += len(await request.body())
        return Response(b"", media_type="application/x-protobuf")

    async def health(_request: Request) -> Response:
        return JSONResponse(taken)

    return Starlette(routes=[Route("/v1/traces", take, methods=["POST"]), Route("/health", health)])


if __name__ == "__main__":
    uvicorn.run(make_app(), port=int(sys.argv[1]), log_level="warning")
