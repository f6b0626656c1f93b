"""The JSON API over the list of runs: `/api/status`, the curves of a policy, the trace of a run."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from trainer_server.common.jsonl import to_json
from trainer_server.common.status import Curve, ServerStatus
from trainer_server.dashboard.sources import SourcesDep
from trainer_server.dashboard.status import status_of
from trainer_server.server.dependencies import RolloutRoute
from trainer_server.wire import NotFound

router = APIRouter(prefix="/api", route_class=RolloutRoute)


@router.get("/status", tags=["health"])
async def status(sources: SourcesDep) -> ServerStatus:
    """One screen of everything: engines, the line, open jobs by phase, policies with their last results, tokens per
    second, memory, and problems with their remedies."""
    await sources.look()
    return await asyncio.to_thread(status_of, sources)


@router.get("/policies/{name}/curves", tags=["policies"], response_model_exclude_none=True)
async def show_curves(
    name: str, sources: SourcesDep, scenario: Annotated[str, Query(max_length=200)] = ""
) -> dict[str, Curve]:
    """The learning curves of a policy, by version: held-out success, rewards of its runs and of its nodes, and each
    metric of its steps. With `scenario`: those of the runs of one scenario."""
    await sources.look()
    curves = await asyncio.to_thread(sources.curves, name, scenario)
    return {curve: Curve.model_validate(values) for curve, values in curves.items()}


@router.get("/rollouts/{rollout}/trace", tags=["rollouts"])
async def get_trace(rollout: str, sources: SourcesDep, request: Request) -> Response:
    """What a client told of a run (`RunTrace`): nodes, tool calls, rewards. `rollout`: its id, or that of its
    trajectory."""
    await sources.look()
    row = await asyncio.to_thread(sources.runs.run, rollout)
    if row is not None:  # the path may have the id of its trajectory
        await sources.server.owners.check(request.scope, [row.id], begins=False)
    run_id = row.id if row else rollout
    trace = await asyncio.to_thread(sources.server.runs.find_trace, run_id)
    if trace is None:
        raise NotFound(
            f"no client told what {run_id!r:.200} did: clients tell it when a run has ended. The ledger has the "
            "completions: GET /api/rollouts/ID",
            code="not_found",
        )
    return Response(to_json(trace), media_type="application/json")
