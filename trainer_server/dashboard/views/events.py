"""What changes, while a page is open: server-sent events."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import suppress

from fastapi import APIRouter, Request, Response
from starlette.responses import StreamingResponse

from trainer_server.dashboard.render import HEADERS, PageRoute
from trainer_server.dashboard.sources import Sources, SourcesDep
from trainer_server.dashboard.status import engine_rows, running_jobs

router = APIRouter(prefix="/ui", include_in_schema=False, route_class=PageRoute)

_POLL_INTERVAL = 1.0
"""Seconds between two looks."""
_ALIVE = 15.0
"""Seconds without a change after which a comment is sent, so that proxies keep the connection."""
_LONGEST = 600.0
"""Seconds after which a stream ends; the browser begins another one. A login that has ended gets none."""


@router.get("/events")
async def events(request: Request, sources: SourcesDep) -> Response:
    """Says which parts of the pages are out of date: `runs`, `jobs`, `engines`, `versions`."""
    headers = {**HEADERS, "X-Accel-Buffering": "no"}
    return StreamingResponse(_changes(request, sources), media_type="text/event-stream", headers=headers)


async def _changes(request: Request, sources: Sources) -> AsyncIterator[str]:
    ending = sources.server.ending
    yield "retry: 3000\n\n"
    previous = await asyncio.to_thread(_state, sources)
    last_line = start = time.monotonic()
    while time.monotonic() < start + _LONGEST:
        with suppress(TimeoutError):
            await asyncio.wait_for(ending.wait(), _POLL_INTERVAL)
        if ending.is_set() or await request.is_disconnected():
            return
        await sources.look()
        state = await asyncio.to_thread(_state, sources)
        changes = [name for name, value in state.items() if previous[name] != value]
        previous = state
        if changes:
            yield f"data: {json.dumps(changes)}\n\n"
        elif time.monotonic() > last_line + _ALIVE:
            yield ": nothing new\n\n"
        else:
            continue
        last_line = time.monotonic()


def _state(sources: Sources) -> dict[str, str]:
    """A text for each part of the pages that changes when the part does."""
    server = sources.server
    running = [(open_job.job.id, open_job.phase, open_job.job.progress) for open_job in running_jobs(server.jobs.queue)]
    newest = server.jobs.queue.ids()[-1:]
    engines = [
        (engine["state"], engine.get("requests"), engine["adapters"], engine.get("error"))
        for engine in engine_rows(server)
    ]
    names = server.names
    return {
        "jobs": json.dumps([running, newest], default=str),
        "engines": json.dumps([engines, server.failure, server.jobs.failure], default=str),
        "versions": json.dumps([names.newest, names.promoted_versions, str(names.candidates)], default=str),
        "runs": sources.runs.revision(),
    }
