"""`/api/completions`: what the ledger knows, and rows of other servers."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Body, Request
from pydantic import FailFast

from trainer_server.server.access.audited import note
from trainer_server.server.dependencies import ServerDep
from trainer_server.wire import Added, Completion, Completions, NotFound
from trainer_server.wire.completions import ledger_id

router = APIRouter(prefix="/api/completions", tags=["completions"])


@router.get("/{completion_id}")
async def show_completion(completion_id: str, server: ServerDep) -> Completion:
    """What the ledger knows about a completion: its exact tokens, log-probabilities, version and request.

    `completion_id` may also be the id of an answer in another API: `resp_…`, `msg_…` or `cmpl-…`.
    """
    key = ledger_id(completion_id) or completion_id
    completions = await asyncio.to_thread(server.ledger.read, [key])
    if key not in completions:
        raise NotFound(f"the ledger has no completion {completion_id!r}", code="not_found")
    return completions[key]


@router.post("/find")
async def find_completions(
    ids: Annotated[list[str], FailFast(), Body(embed=True, max_length=1000)], server: ServerDep
) -> Completions:
    """The same for many completions. Ids that the ledger does not know are left out."""
    completions = await asyncio.to_thread(server.ledger.read, ids)
    return Completions(
        completions=[completions[completion_id] for completion_id in dict.fromkeys(ids) if completion_id in completions]
    )


@router.post("")
async def add_completions(body: Completions, server: ServerDep, request: Request) -> Added:
    """Takes completions of another server into the ledger, all or none. They must be of the same base model and
    tokenizer. Rows that are here already are never overwritten."""
    note(request.scope, target=f"{len(body.completions)} completions")
    rollouts = {completion.rollout for completion in body.completions if completion.rollout}
    await server.owners.check(request.scope, rollouts, begins=True)
    return await server.foreign.add(body.completions)
