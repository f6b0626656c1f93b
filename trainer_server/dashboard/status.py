"""The state of the server: what pages show of it now, and all of it as `GET /api/status` answers it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any

from trainer_server.common.status import (
    EngineState,
    EngineStatus,
    GPUMemory,
    JobPhase,
    LineStatus,
    MemoryStatus,
    OpenJob,
    PolicyStatus,
    Problem,
    RunsOutcome,
    ServerStatus,
    Traffic,
)
from trainer_server.dashboard.sources import Sources
from trainer_server.engines.base import UNKNOWN, Engine, missing_text
from trainer_server.jobs.queue import JobQueue
from trainer_server.ledger.run_list import Outcome
from trainer_server.process.hardware import (
    flavour,
    gpu_use,
    main_memory,
    memory_in_use,
    resident_memory,
    resident_memory_of_sessions,
)
from trainer_server.server.metrics.counters import Rate
from trainer_server.server.server import Server
from trainer_server.wire import Job, JobStatus, Policy

RECENT = 5
"""Newest versions among whose groups those are counted that teach nothing."""
_JOBS = 200
"""Newest jobs among which the last steps of a policy are searched."""
_GPUS = 5.0
"""Seconds between two readings of the memory of GPUs: each starts a process."""
_NOW = 10
"""Seconds of the faster of two rates."""
_WORDS: dict[JobPhase, str] = {
    "queued": "waits for the trainer",
    "prepare": "an engine prepares what the trainer needs",
    "train": "the trainer computes",
    "load": "the engines load the version",
}
_LOGS = "the folder logs/ in the server's home has its log"


def status_of(sources: Sources) -> ServerStatus:
    """The whole state. Reads files and the list of runs: blocks."""
    server = sources.server
    policies = _policies(sources)
    engines = [_engine(row) for row in engine_rows(server)]
    admission = server.admission
    waiting = max(0, admission.under_way - admission.running)
    return ServerStatus(
        time=time.time(),
        started=server.start_time,
        model=server.identity.base.name,
        ready=server.ready,
        trainer=server.jobs.process.running,
        engines=engines,
        line=LineStatus(
            running=admission.running, waiting=waiting, most=admission.most, refused=admission.refusal_count
        ),
        jobs=running_jobs(server.jobs.queue),
        policies=policies,
        traffic=_traffic(server),
        memory=_memory(sources),
        problems=_problems(sources, policies, engines),
    )


def _engine(row: dict[str, Any]) -> EngineStatus:
    state: EngineState = "ready" if row.get("ready") else "resting" if row.get("resting") else "not ready"
    return EngineStatus(
        url=str(row.get("url")),
        state=state,
        requests=int(row.get("requests") or 0),
        restarts=int(row.get("restarts") or 0),
        adapters=[str(name) for name in row["adapters"]],
        error=row.get("error"),
    )


def _policies(sources: Sources) -> list[PolicyStatus]:
    steps = last_steps(sources)
    return [
        _policy(sources, policy, next(iter(steps.get(policy.name, ())), None))
        for policy in sources.server.store.policies()
    ]


def last_steps(sources: Sources) -> dict[str, list[Job]]:
    """The newest steps and warm starts of each policy that have ended, the newest first."""
    board = sources.server.jobs.queue
    ids = board.ids()
    return sources.unless_changed("last steps", (len(ids), ids[-1:], board.open_ids()), lambda: _last_steps(sources))


def _last_steps(sources: Sources) -> dict[str, list[Job]]:
    steps: dict[str, list[Job]] = {}
    for job in sources.server.jobs.newest(_JOBS):
        if job.status.final and job.kind != "create":
            steps.setdefault(job.policy, []).append(job)
    return steps


def _policy(sources: Sources, policy: Policy, last_step: Job | None) -> PolicyStatus:
    figures = sources.figures(policy.name)

    def recent_groups() -> list[Outcome]:
        return sources.runs.groups(policy.name, sorted(outcome.version for outcome in figures.training)[-RECENT:])

    groups = sources.unless_changed(f"groups of {policy.name}", sources.runs.revision(), recent_groups)
    newest = sources.server.store.version(policy.name, policy.latest)
    return PolicyStatus(
        name=policy.name,
        newest=policy.latest,
        promoted=policy.promoted,
        candidate=policy.candidate.version if policy.candidate else None,
        share=policy.candidate.share if policy.candidate else None,
        held_out=_outcome(figures.held_out),
        training=_outcome(figures.training),
        score=newest.score if newest else None,
        groups=len(groups),
        dead_groups=sum(group.is_dead for group in groups),
        last_step=last_step,
    )


def _outcome(outcomes: Sequence[Outcome]) -> RunsOutcome | None:
    """Of the newest version."""
    if not outcomes:
        return None
    last = max(outcomes, key=lambda outcome: outcome.version)
    return RunsOutcome(version=last.version, runs=last.runs, mean=last.mean, success=last.successes / last.runs)


def _traffic(server: Server) -> list[Traffic]:
    minute, moment = server.counters.rates.of(), server.counters.rates.of(_NOW)
    running = dict(server.admission.by_policy)
    traffic = []
    for policy in {*minute, *running}:
        rate = minute.get(policy, Rate())
        traffic.append(
            Traffic(
                policy=policy,
                running=running.get(policy, 0),
                total=server.counters.rates.completions[policy],
                completions=rate.completions,
                tokens=rate.sampled_tokens,
                tokens_now=moment.get(policy, Rate()).sampled_tokens,
                prompt_tokens=rate.prompt,
            )
        )
    return sorted(traffic, key=lambda entry: (-entry.tokens, -entry.running, entry.policy or ""))


def _memory(sources: Sources) -> MemoryStatus:
    server = sources.server
    sessions = resident_memory_of_sessions()
    parts = {"server": resident_memory(os.getpid())}
    children = {"trainer": server.jobs.process.pid if server.jobs.process.running else None}
    children |= {_name(server, at): engine.describe().get("pid") for at, engine in enumerate(server.engines)}
    parts |= {name: sessions[pid] for name, pid in children.items() if pid}
    gpus = sources.unless_changed("gpus", int(time.monotonic() / _GPUS), gpu_use) if flavour() == "cuda" else []
    return MemoryStatus(
        parts=parts,
        used=memory_in_use(),
        total=main_memory(),
        gpus=[GPUMemory(used=memory, total=total) for memory, total in gpus],
    )


def _name(server: Server, at: int) -> str:
    return "engine" if len(server.engines) == 1 else f"engine {at}"


def _lacks(engine: Engine) -> str | None:
    """What an engine goes without; None: nothing, or it is not known yet."""
    missing = engine.describe().get("missing")
    if isinstance(missing, dict) and missing:
        return f"goes without {missing_text(missing)}"
    return "runs without the plugins: half-applied adapters stay unseen" if missing == UNKNOWN else None


def _problems(sources: Sources, policies: list[PolicyStatus], engines: list[EngineStatus]) -> list[Problem]:
    """What is wrong, the worst first."""
    server = sources.server
    problems: list[Problem] = []

    def add(what: str, remedy: str) -> None:
        problems.append(Problem(what=what, remedy=remedy))

    if server.failure:
        add(
            f"an engine could not be started: {server.failure}",
            f"{_LOGS}; `art-langgraph doctor --model {server.config.model}` checks model and machine",
        )
    for engine, status in zip(server.engines, engines, strict=True):
        if why := engine.failure or status.error:
            add(f"the engine {engine.url} is {status.state}: {why}", _engine_remedy(server, engine))
        elif status.state == "not ready" and not server.config.engine_urls:
            add(
                f"the engine {engine.url} is not ready yet: it starts, which takes minutes",
                f"wait, requests do so too; {_LOGS}, engine.log",
            )
        if lacks := _lacks(engine):
            add(f"the engine {engine.url} {lacks}", "docs: scaling/engines, Versions of vLLM")
    if server.jobs.failure:
        add(server.jobs.failure, f"{_LOGS}, trainer.log; open jobs stay queued until it works again")
    elif not (server.jobs.process.running or server.jobs.process.asleep):
        add("the trainer process does not run", f"it is started again by itself; {_LOGS}, trainer.log")
    for name, why in server.names.unserved_policies.items():
        add(f"the policy {name!r} is not served: {why}", "serve with the settings that it needs, or leave it")
    for policy in server.store.policies():
        for why in policy.quarantined.values():
            add(why, f"go on from another version: `art-langgraph promote {policy.name}@N`, `art-langgraph fork`")
    if server.admission.refusal_count:
        add(
            f"{server.admission.refusal_count} chats were refused since the start, as the line was full",
            "send fewer requests at once (max_concurrency), or raise the limit of open files (ulimit -n)",
        )
    for status_of_policy in policies:
        _policy_problems(status_of_policy, add)
    if sources.follower.problem:
        add(f"the list of runs is not complete: {sources.follower.problem}", "the ledger is not concerned by that")
    return problems


def _engine_remedy(server: Server, engine: Engine) -> str:
    if server.config.engine_urls:
        return f"look at the vLLM at {engine.url}: it was started elsewhere"
    return f"it is started again by itself; {_LOGS}"


def _groups_remedy(policy: str) -> str:
    return (
        f"`art-langgraph trajectories dead-groups --policy {policy}` says why, and what to do, of runs that were made "
        "with `store=`"
    )


def _policy_problems(policy: PolicyStatus, add: Callable[[str, str], None]) -> None:
    job = policy.last_step
    if job is not None and job.status == JobStatus.failed:
        add(f"the last {job.kind} of {policy.name!r} failed: {job.error}", f"`art-langgraph jobs list` shows {job.id}")
    elif job is not None and job.result is not None and (why := job.result.metrics.get("skipped")):
        add(
            f"the last {job.kind} of {policy.name!r} learnt nothing: {why}",
            _groups_remedy(policy.name),
        )
    elif policy.groups and policy.dead_groups == policy.groups:
        add(
            f"all {policy.groups} groups of the last versions of {policy.name!r} teach nothing: in each, all runs got "
            "the same reward",
            _groups_remedy(policy.name),
        )


def running_jobs(board: JobQueue) -> list[OpenJob]:
    """The jobs that have not ended, oldest first. Reads a few small files of each."""
    running = []
    for job_id in board.open_ids():
        job = board.job(job_id)
        if job is None or job.status.final:
            continue
        start_time = board.started_at(job_id)
        phase: JobPhase
        if board.training_outcome(job_id) is not None:
            phase = "load"
        elif start_time is not None or job.status is JobStatus.running:
            phase = "train"
        else:
            phase = "queued" if board.ready(job_id) else "prepare"
        running.append(OpenJob(job=job, phase=phase, words=_WORDS[phase], since=start_time or job.created))
    return running


def engine_rows(server: Server) -> list[dict[str, Any]]:
    """Each engine as a table shows it."""
    rows = []
    for engine in server.engines:
        row = engine.describe()
        state = "ready" if row.get("ready") else "rests for a step" if row.get("resting") else "not ready"
        rows.append({**row, "state": state, "adapters": list(row.get("adapters") or ())})
    return rows


def throughput(minutes: list[tuple[int, int, int, int]], span: int = 60) -> dict[str, list[float]]:
    """Completions and sampled tokens of each of the last minutes, for a chart; minutes without any are 0.

    Args:
        minutes: Minute (of Unix time), completions, tokens and failures, as `RunList.minutes` has them.
        span: How many minutes.
    """
    by_minute = {minute: counts for minute, *counts in minutes}
    now = int(time.time() // 60)
    places = range(now - span + 1, now + 1)
    completions, tokens, failures = zip(*(by_minute.get(minute, (0, 0, 0)) for minute in places), strict=True)
    return {
        "x": [float(minute * 60) for minute in places],
        "completions": [float(count) for count in completions],
        "tokens": [count / 60 for count in tokens],
        "failed": [float(count) for count in failures],
    }
