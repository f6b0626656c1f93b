"""The first page, and the pages of policies and jobs."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from starlette.responses import JSONResponse

from trainer_server.dashboard.curves import curves, flat
from trainer_server.dashboard.evaluations import repeats_of
from trainer_server.dashboard.render import HEADERS, PageRoute, page
from trainer_server.dashboard.sources import Sources, SourcesDep
from trainer_server.dashboard.status import RECENT, engine_rows, running_jobs, throughput
from trainer_server.ledger.run_list import MOST_SCENARIOS, Outcome
from trainer_server.server.dependencies import get_policy
from trainer_server.wire import NotFound

router = APIRouter(include_in_schema=False, route_class=PageRoute)

_SHOWN_METRICS = ("reward_mean", "loss", "grad_norm", "entropy", "logp_gap", "tokens_trained", "groups_skipped")


@router.get("/")
async def overview(request: Request, sources: SourcesDep) -> Response:
    """Policies, running jobs, engines, throughput, the newest jobs."""
    await sources.look()
    policies, jobs, current = await asyncio.gather(
        asyncio.to_thread(_policies, sources),
        asyncio.to_thread(sources.server.jobs.newest, 12),
        asyncio.to_thread(_now, sources),
    )
    current["unserved"] = sources.server.names.unserved_policies
    return page(request, "overview.html", policies=policies, jobs=jobs, **current)


@router.get("/ui/now")
async def now(request: Request, sources: SourcesDep) -> Response:
    """The part of the first page that changes: running jobs, engines."""
    return page(request, "now.html", **await asyncio.to_thread(_now, sources))


@router.get("/ui/throughput.json")
async def show_throughput(sources: SourcesDep) -> Response:
    """The chart of the last hour."""
    await sources.look()
    minutes = await asyncio.to_thread(sources.runs.minutes, time.time() - 3600)
    return JSONResponse(throughput(minutes), headers=HEADERS)


@router.get("/ui/policies/{name}")
async def policy(
    name: str,
    request: Request,
    sources: SourcesDep,
    scenario: Annotated[str, Query(max_length=200)] = "",
    after: Annotated[str, Query(max_length=200)] = "",
) -> Response:
    """A policy: learning curves, of all runs or of a scenario's; versions; what several evaluation runs of a scenario
    tell; groups that teach nothing; scenarios."""
    await sources.look()
    values = await asyncio.to_thread(_policy, sources, name, scenario.strip(), after)
    return page(request, "policy.html", **values)


@router.get("/ui/jobs")
async def jobs(request: Request, sources: SourcesDep) -> Response:
    """The newest jobs."""
    jobs = await asyncio.to_thread(sources.server.jobs.newest, 200)
    return page(request, "jobs.html", jobs=jobs)


@router.get("/ui/jobs/{job_id}")
async def job(job_id: str, request: Request, sources: SourcesDep) -> Response:
    """A job: its state, phases, metrics, and the runs that it was sent."""
    board = sources.server.jobs.queue
    job = await asyncio.to_thread(board.job, job_id) if job_id in await asyncio.to_thread(board.ids) else None
    if job is None:
        raise NotFound(f"there is no job {job_id!r:.100}: it was deleted, or never there", code="not_found")
    metrics = job.result.metrics if job.result else {}
    others = {name: value for name, value in metrics.items() if name not in flat(metrics)}
    return page(request, "job.html", job=job, numbers=flat(metrics), others=others)


def _now(sources: Sources) -> dict[str, Any]:
    server = sources.server
    return {
        "running": running_jobs(server.jobs.queue),
        "engines": engine_rows(server),
        "failure": server.failure or server.jobs.failure,
        "trainer": server.jobs.process.running or server.jobs.process.asleep,
    }


def _policies(sources: Sources) -> list[dict[str, Any]]:
    rows = []
    for policy in sources.server.store.policies():
        figures = sources.figures(policy.name)
        newest = sources.server.store.version(policy.name, policy.latest)
        last = figures.held_out[-1] if figures.held_out else None
        rows.append({"policy": policy, "newest": newest, "held_out": last, "training": figures.training[-1:]})
    return rows


def _policy(sources: Sources, name: str, scenario: str, after: str) -> dict[str, Any]:
    policy = get_policy(sources.server, name)
    versions = sources.versions(name)
    figures = sources.figures(name)
    # Rewards of nodes take longest to add up: the page's script adds their names, with the curves that it fetches.
    by_name = sources.curves(name, scenario) if scenario else curves(versions, figures.training, figures.held_out)
    held_out = {outcome.version: outcome for outcome in figures.held_out}
    training = {outcome.version: outcome for outcome in figures.training}
    recent = sorted(training)[-RECENT:]
    groups = sources.runs.groups(name, recent) if recent else []
    repeats = repeats_of(sources.runs.groups(name, sorted(held_out)[-RECENT:], evaluation=True))
    scenarios = sources.runs.scenarios(name, after)
    return {
        "policy": policy,
        "versions": [
            {
                "version": version,
                "numbers": flat(version.metrics),
                "held_out": held_out.get(version.version),
                "training": training.get(version.version),
                "loaded": sources.server.slots.holds((name, version.version)),
            }
            for version in reversed(versions)
        ],
        "columns": [name for name in _SHOWN_METRICS if any(name in flat(version.metrics) for version in versions)],
        "dead": _dead(groups),
        "groups": len(groups),
        "recent": recent,
        "repeats": repeats,
        "ks": sorted({k for row in repeats for k in row.pass_at}),
        "curves": sorted(by_name),
        "scenario": scenario,
        "scenarios": scenarios,
        "after": after,
        "more": len(scenarios) == MOST_SCENARIOS,
    }


def _dead(groups: list[Outcome]) -> list[Outcome]:
    """Groups whose rewards are all the same, the lowest rewards first."""
    return sorted((group for group in groups if group.is_dead), key=lambda group: (group.mean, -group.version))[:50]
