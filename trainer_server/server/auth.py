"""Who may ask: the bearer token."""

from __future__ import annotations

import hmac
import os
import secrets

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from trainer_server.gateway.errors import APIError
from trainer_server.process.files import write_atomic
from trainer_server.wire import ConfigError, Home

OPEN = {"/health", "/", "/favicon.ico"}
"""Routes that need no token; they tell nothing of what is served."""


class BearerAuth:
    """Answers 401 to requests without the token. Plain ASGI: streams and disconnects pass through untouched."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self.app = app
        self._token = token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN:
            await self.app(scope, receive, send)
            return
        given = Headers(scope=scope).get("Authorization", "").removeprefix("Bearer ").strip()
        if hmac.compare_digest(given.encode(), self._token):
            await self.app(scope, receive, send)
            return
        what = "the bearer token is wrong" if given else "the bearer token is missing"
        refusal = APIError(
            401,
            f"{what}: send `Authorization: Bearer <token>`; the server keeps it in `<home>/token`",
            code="invalid_api_key",
        )
        await refusal.response()(scope, receive, send)


def ensure_token(home: Home) -> str:
    """The bearer token under the home directory, generated (0600) on first start; `ART_API_KEY` overrides it."""
    if key := os.environ.get("ART_API_KEY"):
        return key
    if not home.token.exists():
        write_atomic(home.token, f"art-{secrets.token_urlsafe(32)}")
    token = home.token.read_text().strip()
    if not token:
        raise ConfigError(f"{home.token} is empty: delete it, and a new token is made")
    return token
