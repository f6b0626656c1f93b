"""The first page, and the pages of policies and jobs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from starlette.responses import JSONResponse

from trainer_server.dashboard.curves import beside_numbers, curves, flat
from trainer_server.dashboard.evaluations import repeats_of
from trainer_server.dashboard.pace import StepPace
from trainer_server.dashboard.render import HEADERS, PageRoute, address, page, part
from trainer_server.dashboard.sources import Figures, Sources, SourcesDep
from trainer_server.dashboard.status import RECENT, engine_rows, last_steps, running_jobs, throughput
from trainer_server.ledger.run_list import MOST_SCENARIOS, Outcome, RunRow
from trainer_server.server.dependencies import get_policy
from trainer_server.wire import NotFound, Policy

router = APIRouter(include_in_schema=False, route_class=PageRoute)

_SHOWN_VERSIONS = 6
"""Versions of a scenario on the page of a policy: the first one and the newest."""
_MOST_LISTED = 200
"""Trajectories of a step whose runs the page of its job lists."""
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
    """A policy: learning curves, of all runs or of a scenario's; the pace of its steps; versions; what several
    evaluation runs of a scenario tell; groups that teach nothing; scenarios."""
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
    numbers, others = flat(metrics), beside_numbers(metrics)
    trained = await asyncio.to_thread(_runs_by_task, sources, (job.result.trajectories or []) if job.result else [])
    return page(request, "job.html", job=job, numbers=numbers, others=others, trained=trained, most=_MOST_LISTED)


def _runs_by_task(sources: Sources, references: Sequence[str]) -> dict[str, list[tuple[str, RunRow | None]]]:
    """The first runs that a step trained, by the words of their task: id, and row in the list. A run whose row is gone
    stands under its id."""
    runs = sources.runs.runs([reference.partition("/")[0] for reference in references[:_MOST_LISTED]])
    words = sources.words({run.scenario for run in runs.values() if run and run.scenario})
    by_task: dict[str, list[tuple[str, RunRow | None]]] = {}
    for trajectory, run in runs.items():
        task = words[run.scenario] if run and run.scenario else trajectory
        by_task.setdefault(task, []).append((run.id if run else trajectory, run))
    return by_task


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
        first = figures.held_out[0] if len(figures.held_out) > 1 else None
        advice = _advice(policy, figures)
        rows.append({"policy": policy, "newest": newest, "held_out": last, "first": first, "advice": advice})
    return rows


def _advice(policy: Policy, figures: Figures) -> tuple[str, str, str]:
    """What to do next with a policy: words, a command, and the address of a page that helps; each may be empty."""
    held_out = figures.held_out[-1] if figures.held_out else None
    runs = address("/ui/runs", policy=policy.name)
    if not held_out and not figures.training:
        return "No run has a reward yet: run the graph on scenarios, and train it.", "art-langgraph train", runs
    if policy.latest == 0 and (not held_out or held_out.version == 0):
        return "Runs have rewards, and no step has trained on them yet.", "art-langgraph train", runs
    if not held_out or held_out.version < policy.latest:
        return f"Nobody has evaluated {policy.name}@{policy.latest} yet.", "art-langgraph evaluate", runs
    if policy.served != policy.latest:
        words = f"{policy.name} means @{policy.served}: compare it with @{policy.latest}, and promote the better one."
        return words, "", f"/ui/policies/{part(policy.name)}#versions"
    failed = held_out.runs - held_out.successes
    if not failed:
        return "It solves all held-out runs: evaluate it on harder scenarios.", "art-langgraph evaluate", runs
    which = address("/ui/runs", policy=policy.name, version=policy.latest, kind="evaluation", max_reward=0.999999)
    return (
        f"Look at the {failed} held-out run{'s' if failed > 1 else ''} that @{policy.latest} did not solve.",
        "",
        which,
    )


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
    scenarios, dead = sources.runs.scenarios(name, after), _dead(groups)
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
        "advice": _advice(policy, figures),
        "columns": [name for name in _SHOWN_METRICS if any(name in flat(version.metrics) for version in versions)],
        "dead": dead,
        "groups": len(groups),
        "recent": recent,
        "repeats": repeats,
        "ks": sorted({k for row in repeats for k in row.pass_at}),
        "curves": sorted(by_name),
        "pace": StepPace.of(last_steps(sources).get(name, [])),
        "scenario": scenario,
        "scenarios": _scenario_rows(sources, name, scenarios),
        "after": after,
        "words": sources.words(filter(None, {scenario, *scenarios, *(group.scenario for group in dead)})),
        "more": len(scenarios) == MOST_SCENARIOS,
    }


def _scenario_rows(sources: Sources, policy: str, scenarios: Sequence[str]) -> list[dict[str, Any]]:
    """For each scenario the runs and successes of its first and its newest versions, trained and evaluated together."""
    rows: dict[str, dict[int, tuple[int, int]]] = {scenario: {} for scenario in scenarios}
    for outcome in sources.runs.of_scenarios(policy, scenarios):
        versions = rows[str(outcome.scenario)]
        runs, successes = versions.get(outcome.version, (0, 0))
        versions[outcome.version] = runs + outcome.runs, successes + outcome.successes
    return [
        {
            "id": scenario,
            "versions": [
                {"version": version, "runs": runs, "successes": successes, "shade": round(5 * successes / runs)}
                for at, (version, (runs, successes)) in enumerate(sorted(versions.items()))
                if at == 0 or at > len(versions) - _SHOWN_VERSIONS
            ],
        }
        for scenario, versions in rows.items()
    ]


def _dead(groups: list[Outcome]) -> list[Outcome]:
    """Groups whose rewards are all the same, the lowest rewards first."""
    return sorted((group for group in groups if group.is_dead), key=lambda group: (group.mean, -group.version))[:50]
