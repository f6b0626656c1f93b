"""`/api/completions`: what the ledger knows, and rows of other servers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Annotated

from fastapi import APIRouter, Body, Request, Response
from pydantic import FailFast

from trainer_server.server.access.audited import note
from trainer_server.server.dependencies import ServerDep
from trainer_server.server.server import Server
from trainer_server.wire import Added, Completion, Completions, NotFound
from trainer_server.wire.completions import ledger_id
from trainer_server.wire.jsonl import to_json

router = APIRouter(prefix="/api/completions", tags=["completions"])


@router.get("/{completion_id}", response_model=Completion)
async def show_completion(completion_id: str, server: ServerDep, request: Request) -> Response:
    """What the ledger knows about a completion: its exact tokens, log-probabilities, version and request.

    `completion_id` may also be the id of an answer in another API: `resp_…`, `msg_…` or `cmpl-…`. 403 for a completion
    of another token's rollout.
    """
    key = ledger_id(completion_id) or completion_id
    completions = await asyncio.to_thread(server.ledger.read, [key])
    if key not in completions:
        raise NotFound(f"the ledger has no completion {completion_id!r}", code="not_found")
    await _check_owners(server, request, completions.values())
    return Response(to_json(completions[key]), media_type="application/json")


@router.post("/find", response_model=Completions)
async def find_completions(
    ids: Annotated[list[str], FailFast(), Body(embed=True, max_length=1000)], server: ServerDep, request: Request
) -> Response:
    """The same for many completions. Ids that the ledger does not know are left out."""
    completions = await asyncio.to_thread(server.ledger.read, ids)
    await _check_owners(server, request, completions.values())
    rows = [completions[completion_id] for completion_id in dict.fromkeys(ids) if completion_id in completions]
    content = await asyncio.to_thread(to_json, Completions(completions=rows))
    return Response(content, media_type="application/json")


@router.post("")
async def add_completions(body: Completions, server: ServerDep, request: Request) -> Added:
    """Takes completions of another server into the ledger, all or none. They must be of the same base model and
    tokenizer. Rows that are here already are never overwritten."""
    note(request.scope, target=f"{len(body.completions)} completions")
    rollouts = {completion.rollout for completion in body.completions if completion.rollout}
    await server.owners.check(request.scope, rollouts, begins=True)
    return await server.foreign.add(body.completions)


async def _check_owners(server: Server, request: Request, completions: Iterable[Completion]) -> None:
    rollouts = {completion.rollout for completion in completions if completion.rollout}
    await server.owners.check(request.scope, rollouts, begins=False)
