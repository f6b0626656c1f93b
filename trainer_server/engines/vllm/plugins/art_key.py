"""vLLM's key on all of its routes: by itself it guards only those below /v1, and leaves others open, among them those
that put it to sleep or run code in its workers.

vLLM takes this class by `--middleware art_key.KeyOnly`; this folder is on its PYTHONPATH.
"""

from __future__ import annotations

import os
import secrets

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

OPEN = "/health"


class KeyOnly:
    """Refuses every request but those for /health that do not carry VLLM_API_KEY as bearer token. Without a key it
    lets everything through, as vLLM does."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._expected = f"Bearer {os.environ.get('VLLM_API_KEY', '')}".encode()
        self._guarded = bool(os.environ.get("VLLM_API_KEY"))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._guarded and scope["type"] in ("http", "websocket") and scope["path"] != OPEN:
            given = Headers(scope=scope).get("Authorization", "").encode()
            if not secrets.compare_digest(given, self._expected):
                if scope["type"] == "websocket":
                    await send({"type": "websocket.close", "code": 1008})
                else:
                    await PlainTextResponse("Unauthorized", 401)(scope, receive, send)
                return
        await self._app(scope, receive, send)
