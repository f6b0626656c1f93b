"""`/api/completions`: what the ledger knows."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter

from trainer_server.server.dependencies import ServerDep
from trainer_server.wire import Completion, NotFound

router = APIRouter(prefix="/api/completions", tags=["completions"])


@router.get("/{completion_id}")
async def show_completion(completion_id: str, server: ServerDep) -> Completion:
    """What the ledger knows about a completion: its exact tokens, log-probabilities, version and request."""
    completions = await asyncio.to_thread(server.ledger.read, [completion_id])
    if completion_id not in completions:
        raise NotFound(f"the ledger has no completion {completion_id!r}", code="not_found")
    return completions[completion_id]
