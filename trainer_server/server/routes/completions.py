"""`/api/completions`: what the ledger knows."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter

from trainer_server.server.dependencies import ServerDep
from trainer_server.wire import Completion, NotFound, answer_ids

router = APIRouter(prefix="/api/completions", tags=["completions"])


@router.get("/{completion_id}")
async def show_completion(completion_id: str, server: ServerDep) -> Completion:
    """What the ledger knows about a completion: its exact tokens, log-probabilities, version and request.

    `completion_id` may also be the id of an answer in another API: `resp_…`, `msg_…` or `cmpl-…`.
    """
    key = answer_ids.completion_id(completion_id) or completion_id
    completions = await asyncio.to_thread(server.ledger.read, [key])
    if key not in completions:
        raise NotFound(f"the ledger has no completion {completion_id!r}", code="not_found")
    return completions[key]
