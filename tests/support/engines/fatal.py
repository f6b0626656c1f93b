"""Middleware for the small engine: chat requests kill it, as when its kernels cannot be compiled."""

from __future__ import annotations

import os
import sys

from starlette.types import ASGIApp, Receive, Scope, Send


class Fatal:
    """Ends the process at a chat request. Text completions are answered.

    Args:
        app: The engine.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope.get("path") == "/v1/chat/completions":
            print("(EngineCore pid=7) RuntimeError: Failed to find C compiler.", file=sys.stderr, flush=True)
            os._exit(1)
        await self._app(scope, receive, send)
