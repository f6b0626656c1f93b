"""`/api/token`: what a token is for. Tokens are created by commands on the server's machine, never over HTTP."""

from __future__ import annotations

from importlib.metadata import version

from fastapi import APIRouter, Request

from trainer_server.common import TokenInfo
from trainer_server.server.access.scopes import token_of

router = APIRouter(prefix="/api/token", tags=["tokens"])


@router.get("")
async def show_token(request: Request) -> TokenInfo:
    """Name, owner, scope and expiry of the token that asks, and the server's version."""
    token = token_of(request.scope)
    assert token is not None, "the route has a scope"
    facts = token.model_dump(include={"name", "owner", "scope", "expires"})
    return TokenInfo(**facts, version=version("art-langgraph"))
