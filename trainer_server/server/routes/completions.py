"""`/api/completions`: what the ledger knows, and rows of other servers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Annotated

from fastapi import APIRouter, Body, Request, Response
from pydantic import FailFast

from trainer_server.common.jsonl import to_json
from trainer_server.gateway.errors import APIError
from trainer_server.ledger.base import Ledger
from trainer_server.ledger.records import read_few
from trainer_server.server.access.request_log import note
from trainer_server.server.dependencies import ServerDep
from trainer_server.server.server import Server
from trainer_server.wire import Added, Completion, Completions, NotFound
from trainer_server.wire.bounds import ANSWER_TOO_LARGE, MOST_ANSWER
from trainer_server.wire.completions import ledger_id

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
    """The same for many completions. Ids that the ledger does not know are left out. 413 (`answer_too_large`) for more
    than one where all together have more than 64 MiB: ask for fewer."""
    rows, rollouts = await asyncio.to_thread(_rows, server.ledger, list(dict.fromkeys(ids)))
    await server.owners.check(request.scope, rollouts, begins=False)
    if rows is None:
        raise APIError(
            413,
            f"these completions have more than {MOST_ANSWER // 2**20} MiB: ask for fewer than {len(ids)} at once",
            code=ANSWER_TOO_LARGE,
            param="ids",
        )
    return Response(f'{{"completions":[{",".join(rows)}]}}', media_type="application/json")


@router.post("")
async def add_completions(body: Completions, server: ServerDep, request: Request) -> Added:
    """Takes completions of another server into the ledger, all or none. They must be of the same base model and
    tokenizer. Rows that are here already are never overwritten."""
    note(request.scope, target=f"{len(body.completions)} completions")
    rollouts = {completion.rollout for completion in body.completions if completion.rollout}
    await server.owners.check(request.scope, rollouts, begins=True)
    return await server.imported_completions.add(body.completions)


def _rows(ledger: Ledger, ids: Sequence[str]) -> tuple[list[str] | None, set[str]]:
    """Rows of the ledger as JSON, and their rollouts. None: they have more than MOST_ANSWER bytes; those that are too
    much were not read. A single row is never too much."""
    rows: list[str] = []
    rollouts, size = set[str](), 0
    for completion in read_few(ledger, ids):
        rollouts |= {completion.rollout} if completion.rollout else set()
        rows.append(to_json(completion))
        size += len(rows[-1].encode())
        if size > MOST_ANSWER and len(rows) > 1:
            return None, rollouts
    return rows, rollouts


async def _check_owners(server: Server, request: Request, completions: Iterable[Completion]) -> None:
    rollouts = {completion.rollout for completion in completions if completion.rollout}
    await server.owners.check(request.scope, rollouts, begins=False)
