"""vLLM's key on all of its routes: by itself it guards only those below /v1, and leaves others open, among them those
that put it to sleep or run code in its workers. One route is added: `GET /art/plugins` answers which features the
plugins have left out in this vLLM, with what is missing for them (`art_parts`), and how many requests vLLM computes at
once.

vLLM takes this class by `--middleware art_key.KeyOnly`; this folder is on its PYTHONPATH. Without a key vLLM would
serve everybody: then this module cannot be imported, and vLLM does not start.
"""

from __future__ import annotations

import os
import secrets

import art_parts
from starlette.datastructures import Headers
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

OPEN = "/health"
PLUGINS = "/art/plugins"

if not os.environ.get("VLLM_API_KEY"):
    raise RuntimeError("VLLM_API_KEY is not set or empty: give it the key that `art-langgraph serve` has for engines")


class KeyOnly:
    """Refuses every request but those for /health that do not carry VLLM_API_KEY as bearer token."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._authorization = f"Bearer {os.environ['VLLM_API_KEY']}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket") and scope["path"] != OPEN:
            authorization = Headers(scope=scope).get("Authorization", "").encode()
            if not secrets.compare_digest(authorization, self._authorization):
                if scope["type"] == "websocket":
                    await send({"type": "websocket.close", "code": 1008})
                else:
                    await PlainTextResponse("Unauthorized", 401)(scope, receive, send)
                return
            if scope["type"] == "http" and scope["path"] == PLUGINS:
                report = {"missing": art_parts.missing(), **_limits(scope)}
                await JSONResponse(report)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _limits(scope: Scope) -> dict[str, int]:
    """`max_num_seqs` of all ranks together; nothing where this vLLM has it elsewhere."""
    try:
        config = scope["app"].state.vllm_config
        return {"max_num_seqs": config.scheduler_config.max_num_seqs * config.parallel_config.data_parallel_size}
    except AttributeError:
        return {}
