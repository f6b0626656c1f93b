"""A run: its tree of nodes and calls; and a completion: its messages and tokens."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from trainer_server.dashboard.facts import facts_of
from trainer_server.dashboard.render import PageRoute, page
from trainer_server.dashboard.sources import SourcesDep
from trainer_server.dashboard.step_history import of_completion, steps_of
from trainer_server.dashboard.tokens import MOST_TOKENS, shown_tokens
from trainer_server.wire import NotFound

router = APIRouter(prefix="/ui", include_in_schema=False, route_class=PageRoute)


@router.get("/runs/{run_id}")
async def show_run(run_id: str, request: Request, sources: SourcesDep) -> Response:
    """A run."""
    await sources.look()
    facts = await asyncio.to_thread(facts_of, sources, run_id)
    verdicts = {row.id: of_completion(row, facts.steps)[2] for row in facts.completions}
    return page(request, "run.html", facts=facts, verdicts=verdicts, problem=sources.follower.problem)


@router.get("/completions/{completion_id}")
async def show_completion(
    completion_id: str, request: Request, sources: SourcesDep, first: Annotated[int, Query(ge=0)] = 0
) -> Response:
    """A completion: the messages of its request, its answer, its tokens."""
    rows = await asyncio.to_thread(sources.server.ledger.read, [completion_id])
    if (row := rows.get(completion_id)) is None:
        raise NotFound(f"the ledger has no completion {completion_id!r:.200}", code="not_found")
    run = await asyncio.to_thread(sources.runs.run, row.rollout) if row.rollout else None
    sent = await asyncio.to_thread(sources.runs.steps, run.number) if run else []
    steps = await asyncio.to_thread(steps_of, sources.server.jobs.board, sent)
    step, measured, verdict = of_completion(row, steps)
    tokens = row.token_ids[first : first + MOST_TOKENS]
    texts = await sources.texts.of(tokens)
    rest = first + MOST_TOKENS if len(row.token_ids) > first + MOST_TOKENS else None
    values: dict[str, Any] = {
        "row": row,
        "tokens": shown_tokens(row, texts, measured, first),
        "first": first,
        "rest": rest,
        "unknown": sum(text is None for text in texts),
        "step": step,
        "measured": measured,
        "verdict": verdict,
    }
    whole = request.headers.get("HX-Request") != "true"
    return page(request, "completion_page.html" if whole else "completion.html", **values)
