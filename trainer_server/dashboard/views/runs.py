"""The list of runs: searched, filtered, in pages."""

from __future__ import annotations

import asyncio
import math
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response

from trainer_server.dashboard.render import PageRoute, address, page
from trainer_server.dashboard.sources import Sources, SourcesDep
from trainer_server.ledger.run_list import RunFilter
from trainer_server.wire import MAX_VERSION, Unprocessable
from trainer_server.wire.numbers import Integer

router = APIRouter(prefix="/ui/runs", include_in_schema=False, route_class=PageRoute)

_PAGE = 100
_MOST_ROWS = 2000
"""Rows after which the page goes on as another page, so that a browser never holds 100,000 of them."""


class RunQuery:
    """The filter of a request: the fields of the form, as they were sent, and what they mean."""

    def __init__(
        self,
        q: Annotated[str, Query(max_length=200)] = "",
        policy: Annotated[str, Query(max_length=100)] = "",
        version: Annotated[str, Query(max_length=20)] = "",
        scenario: Annotated[str, Query(max_length=200)] = "",
        min_reward: Annotated[str, Query(max_length=30)] = "",
        max_reward: Annotated[str, Query(max_length=30)] = "",
        since: Annotated[str, Query(max_length=40)] = "",
        until: Annotated[str, Query(max_length=40)] = "",
        state: Annotated[str, Query(max_length=20)] = "",
        kind: Annotated[str, Query(max_length=20)] = "",
    ) -> None:
        self.fields = {
            "q": q.strip(),
            "policy": policy.strip(),
            "version": version.strip(),
            "scenario": scenario.strip(),
            "min_reward": min_reward.strip(),
            "max_reward": max_reward.strip(),
            "since": since.strip(),
            "until": until.strip(),
            "state": state,
            "kind": kind,
        }
        self.run_filter = RunFilter(
            search=self.fields["q"],
            policy=self.fields["policy"],
            version=_whole("version", self.fields["version"]),
            scenario=self.fields["scenario"],
            min_reward=_number("least reward", self.fields["min_reward"]),
            max_reward=_number("greatest reward", self.fields["max_reward"]),
            since=_moment("from", self.fields["since"]),
            until=_moment("until", self.fields["until"]),
            failed={"failed": True, "whole": False}.get(state),
            rewarded={"rewarded": True, "unrewarded": False}.get(state),
            kind="evaluation" if kind == "evaluation" else "training" if kind == "training" else "",
        )

    def link(self, path: str, **more: object) -> str:
        """An address with this filter."""
        return address(path, **{**self.fields, **more})


RunQueryDep = Annotated[RunQuery, Depends(RunQuery)]


@router.get("")
async def show_runs(request: Request, query: RunQueryDep, sources: SourcesDep, before: str = "") -> Response:
    """The list, from its beginning or from a place in it."""
    await sources.look()
    values = await asyncio.to_thread(_list_page, sources, query, before, 0)
    policies = sorted(sources.server.names.newest)
    total = None if query.run_filter.any else await asyncio.to_thread(sources.runs.count)  # else it would search twice
    return page(request, "runs.html", asked=query, policies=policies, total=total, before=before, **values)


@router.get("/rows")
async def show_rows(
    request: Request,
    query: RunQueryDep,
    sources: SourcesDep,
    before: str = "",
    shown: Annotated[int, Query(ge=0, le=_MOST_ROWS)] = 0,
) -> Response:
    """The next rows of the list."""
    return page(request, "run_rows.html", **await asyncio.to_thread(_list_page, sources, query, before, shown))


@router.get("/newer")
async def show_newer(request: Request, query: RunQueryDep, sources: SourcesDep, newest: Integer = 0) -> Response:
    """How many runs came since the list was shown."""
    await sources.look()
    count = await asyncio.to_thread(sources.runs.newer, query.run_filter, newest)
    return page(request, "runs_newer.html", asked=query, count=count)


def _list_page(sources: Sources, query: RunQuery, before: str, shown_rows: int) -> dict[str, Any]:
    run_page = sources.runs.page(query.run_filter, before, _PAGE)
    shown_rows += len(run_page.runs)
    more = further = None
    if run_page.next and shown_rows + _PAGE <= _MOST_ROWS:
        more = query.link("/ui/runs/rows", before=run_page.next, shown=shown_rows)
    elif run_page.next:
        further = query.link("/ui/runs", before=run_page.next)
    return {
        "runs": run_page.runs,
        "more": more,
        "further": further,
        "newest": sources.runs.newest(),
        "loose": sources.server.runs.loose(),
        "follower": sources.follower,
    }


def _number(name: str, text: str) -> float | None:
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise Unprocessable(f"{name}: {text!r} is no number", code="invalid_filter", param=name)
    return value


def _whole(name: str, text: str) -> int | None:
    if not text:
        return None
    if not text.isdecimal() or not text.isascii() or int(text) >= MAX_VERSION:
        raise Unprocessable(f"{name}: {text!r} is no number of a version", code="invalid_filter", param=name)
    return int(text)


def _moment(name: str, text: str) -> float | None:
    """A time of the form: a Unix time, or a date and time, in UTC where it names no zone."""
    if not text:
        return None
    try:
        return float(text) if text.replace(".", "", 1).isdecimal() else _parse_iso(text)
    except (ValueError, OverflowError):
        raise Unprocessable(
            f"{name}: {text!r} is no time: give 2026-11-22, or 2026-11-22T17:00", code="invalid_filter", param=name
        ) from None


def _parse_iso(text: str) -> float:
    moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
