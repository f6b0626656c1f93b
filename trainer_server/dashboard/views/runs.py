"""The list of runs, searched, filtered, in pages; a run; and a completion with its messages and tokens."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response

from trainer_server.dashboard.facts import facts_of
from trainer_server.dashboard.render import PageRoute, address, page
from trainer_server.dashboard.sources import Sources, SourcesDep
from trainer_server.dashboard.step_history import of_completion, steps_of
from trainer_server.dashboard.tokens import MOST_TOKENS, shown_tokens
from trainer_server.dashboard.words import first_request, task_words
from trainer_server.ledger.run_list import RunFilter
from trainer_server.wire import MAX_VERSION, NotFound, Unprocessable
from trainer_server.wire.numbers import Integer

router = APIRouter(prefix="/ui", include_in_schema=False, route_class=PageRoute)

_PAGE = 100
_MOST_ROWS = 2000
"""Rows after which the page goes on as another page, so that a browser never holds 100,000 of them."""


@dataclass
class RunQuery:
    """The filter of a request: the fields of the form, and what they mean."""

    q: Annotated[str, Query(max_length=200)] = ""
    policy: Annotated[str, Query(max_length=100)] = ""
    version: Annotated[str, Query(max_length=20)] = ""
    scenario: Annotated[str, Query(max_length=200)] = ""
    min_reward: Annotated[str, Query(max_length=30)] = ""
    max_reward: Annotated[str, Query(max_length=30)] = ""
    since: Annotated[str, Query(max_length=40)] = ""
    until: Annotated[str, Query(max_length=40)] = ""
    state: Annotated[str, Query(max_length=20)] = ""
    kind: Annotated[str, Query(max_length=20)] = ""

    def __post_init__(self) -> None:
        self.fields = {name: text.strip() for name, text in vars(self).items()}
        fields = self.fields
        self.run_filter = RunFilter(
            search=fields["q"],
            policy=fields["policy"],
            version=_whole("version", fields["version"]),
            scenario=fields["scenario"],
            min_reward=_number("least reward", fields["min_reward"]),
            max_reward=_number("greatest reward", fields["max_reward"]),
            since=_moment("from", fields["since"]),
            until=_moment("until", fields["until"]),
            failed={"failed": True, "whole": False}.get(fields["state"]),
            rewarded={"rewarded": True, "unrewarded": False}.get(fields["state"]),
            kind=fields["kind"] if fields["kind"] in ("evaluation", "training") else "",
        )

    def link(self, path: str, **more: object) -> str:
        """An address with this filter."""
        return address(path, **{**self.fields, **more})


RunQueryDep = Annotated[RunQuery, Depends(RunQuery)]


@router.get("/runs")
async def show_runs(request: Request, query: RunQueryDep, sources: SourcesDep, before: str = "") -> Response:
    """The list, from its beginning or from a place in it."""
    await sources.look()
    values = await asyncio.to_thread(_list_page, sources, query, before, 0)
    policies = sorted(sources.server.names.newest)
    total = None if query.run_filter.any else await asyncio.to_thread(sources.runs.count)  # else it would search twice
    return page(request, "runs.html", asked=query, policies=policies, total=total, **values)


@router.get("/runs/rows")
async def show_rows(
    request: Request,
    query: RunQueryDep,
    sources: SourcesDep,
    before: str = "",
    shown: Annotated[int, Query(ge=0, le=_MOST_ROWS)] = 0,
) -> Response:
    """The next rows of the list."""
    return page(request, "run_rows.html", **await asyncio.to_thread(_list_page, sources, query, before, shown))


@router.get("/runs/newer")
async def show_newer(request: Request, query: RunQueryDep, sources: SourcesDep, newest: Integer = 0) -> Response:
    """How many runs came since the list was shown."""
    await sources.look()
    count = await asyncio.to_thread(sources.runs.newer, query.run_filter, newest)
    return page(request, "runs_newer.html", asked=query, count=count)


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
    step_rows = await asyncio.to_thread(sources.runs.steps, run.number) if run else []
    steps = await asyncio.to_thread(steps_of, sources.server.jobs.queue, step_rows)
    step, measurement, verdict = of_completion(row, steps)
    tokens = row.token_ids[first : first + MOST_TOKENS]
    texts = await sources.texts.of(tokens)
    rest = first + MOST_TOKENS if len(row.token_ids) > first + MOST_TOKENS else None
    values: dict[str, Any] = {
        "row": row,
        "tokens": shown_tokens(row, texts, measurement, first),
        "first": first,
        "rest": rest,
        "unknown": sum(text is None for text in texts),
        "step": step,
        "measured": measurement,
        "verdict": verdict,
    }
    if request.headers.get("HX-Request") == "true":
        return page(request, "completion.html", **values)
    scenario = run.scenario if run else None
    words = await asyncio.to_thread(sources.words, [scenario] if scenario else [])
    values["words"] = words[scenario] if scenario else task_words(first_request([row])) or row.rollout
    return page(request, "completion_page.html", **values)


@router.get("/{path:path}")
async def show_nothing(path: str) -> Response:
    """Any other address. The routes of this module are the last ones."""
    raise NotFound(f"the dashboard has no page {path!r:.200}", code="not_found")


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
        "filtered": query.run_filter.any,
        "before": before,
        "words": sources.words({run.scenario for run in run_page.runs if run.scenario}),
        "titles": {run.id: sources.request_words(run.id) or run.id for run in run_page.runs if not run.scenario},
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
