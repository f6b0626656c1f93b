"""`/api/rollouts/{rollout}/records`: what remote graphs did in a rollout, from their process to the rollout's."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response

from trainer_server.common.jsonl import to_json
from trainer_server.gateway.body import MOST_API_VALUES, check_values, read_json
from trainer_server.gateway.errors import APIError
from trainer_server.server.dependencies import RolloutRoute, ServerDep
from trainer_server.wire import NotFound, Unprocessable

router = APIRouter(prefix="/api/rollouts/{rollout}/records/{call}", tags=["rollouts"], route_class=RolloutRoute)

Id = Annotated[str, Path(min_length=1, max_length=200)]
"""Of a rollout, a call or a run."""
MAX_WAIT = 30.0
"""Maximum number of seconds for which an answer is held back."""


@router.put("/{run}", status_code=204)
async def put_record(rollout: Id, call: Id, run: Id, request: Request, server: ServerDep) -> None:
    """Takes the record of a run that has ended, a JSON object. An empty body says that the run has begun."""
    body = await request.body()
    server.records.put(rollout, call, run, await asyncio.to_thread(_record, body) if body else None)


@router.get("")
async def get_records(
    rollout: str, call: str, server: ServerDep, wait: Annotated[float, Query(ge=0.0, le=MAX_WAIT)] = 0.0
) -> Response:
    """The records of the runs that answered a call: `{"ended": bool, "records": […]}`.

    Waits until all runs of the call have ended, for `wait` seconds at most. 404: no run has begun.
    """
    entry = await server.records.get(rollout, call, wait)
    if entry is None:
        raise NotFound(f"no process has recorded a run for call {call!r} of rollout {rollout!r}", code="not_found")
    records, is_complete = entry
    body = b'{"ended": %s, "records": [%s]}' % (b"true" if is_complete else b"false", b", ".join(records))
    return Response(body, media_type="application/json")


def _record(body: bytes) -> bytes:
    """A record in UTF-8, as strict JSON: it is answered together with others, which it must not spoil."""
    try:
        record = read_json(body, MOST_API_VALUES)
        if not isinstance(record, dict):
            raise APIError(400, "the body is no object")
        check_values(record, halves=True)
        return to_json(record).encode()
    except APIError as error:
        raise Unprocessable(f"a record is a JSON object: {error}", code="invalid_record", param="body") from None
