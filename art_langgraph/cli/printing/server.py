"""Prints the state of a server: parts of the screens of `status`, `top` and `watch`."""

from __future__ import annotations

import time
from collections.abc import Iterable

from rich.console import Console, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from trainer_server.common.status import (
    EngineStatus,
    MemoryStatus,
    OpenJob,
    PolicyStatus,
    Problem,
    RunsOutcome,
    ServerStatus,
    Traffic,
)
from trainer_server.wire import Job
from trainer_server.wire.text import beginning, visible

_GIB = 1 << 30
_WIDE = 160
"""Columns of a screen in a pipe."""
_STATES = {"ready": "green", "resting": "yellow", "not ready": "red"}
_PHASES = {"done": "dim", "now": "bold green", "later": "dim"}


def screen_console() -> Console:
    """Prints screens: as wide as the terminal, and in a pipe wide enough for their tables."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = max(console.width, _WIDE)
    return console


def format_duration(seconds: float) -> str:
    """A time span for people: `42 s`, `3 min 20 s`, `2 h 13 min`, `3 d 4 h`."""
    whole = max(0, int(seconds))
    for size, name, inner, inner_name in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            return f"{whole // size} {name} {whole % size // inner} {inner_name}"
    return f"{whole} s"


def head(status: ServerStatus, url: str) -> list[RenderableType]:
    """What the screens of `status` and `top` begin with: the server, its requests, its tokens, its memory.

    Args:
        status: Of the server.
        url: Its address.
    """
    return [
        headline(status, url),
        f"requests  {line_of_requests(status)}",
        f"tokens    {tokens(status)}",
        f"memory    {memory(status.memory)}",
        "",
    ]


def headline(status: ServerStatus, url: str) -> Text:
    """A line: where the server is, whether it answers, its base model."""
    state = Text("ready", style="green") if status.ready else Text("not ready", style="bold red")
    trainer = "" if status.trainer else " · the trainer does not run"
    since = f" · {status.model} · up {format_duration(status.time - status.started)}{trainer}"
    return Text.assemble(url, " · ", state, visible(since))


def line_of_requests(status: ServerStatus) -> str:
    """The line, in words."""
    line = status.line
    said = f"{line.running} requests at engines, {line.waiting} in line, {line.most:,} at most"
    return said + (f"; {line.refused:,} refused" if line.refused else "")


def tokens(status: ServerStatus) -> str:
    """How fast the server answers, in words."""
    completions = sum(load.completions for load in status.traffic)
    prompts = sum(load.prompt_tokens for load in status.traffic)
    return f"{status.tokens:,.1f} sampled/s, {prompts:,.1f} of prompts/s, {completions:.2f} completions/s (last minute)"


def memory(memory: MemoryStatus) -> str:
    """Memory, in words."""
    parts = [f"{name} {size / _GIB:.2f} GiB" for name, size in memory.parts.items()]
    if memory.used is not None:
        parts.append(f"{memory.used / _GIB:.1f} of {memory.total / _GIB:.1f} GiB of main memory in use")
    parts += [f"GPU {at} {gpu.used / _GIB:.1f} of {gpu.total / _GIB:.1f} GiB" for at, gpu in enumerate(memory.gpus)]
    return ", ".join(parts)


def engines(engines: Iterable[EngineStatus]) -> Table:
    """A table of engines."""
    table = _table("engine", "state", "requests", "restarts", "adapters")
    for engine in engines:
        state = f"[{_STATES[engine.state]}]{engine.state}[/]"
        adapters = escape(", ".join(engine.adapters))
        table.add_row(escape(visible(engine.url)), state, str(engine.requests), str(engine.restarts), adapters)
    return table


def policies(policies: Iterable[PolicyStatus]) -> Table:
    """A table of policies with their last results."""
    table = _table("policy", "answers", "newest", "held-out success", "reward of runs", "dead groups", "last step")
    for policy in policies:
        answers = f"@{policy.newest if policy.promoted is None else policy.promoted}"
        answers += "" if policy.promoted is None else " promoted"
        if policy.candidate is not None:
            answers += f", @{policy.candidate} for {policy.share or 0:.0%}"
        dead = f"{policy.dead_groups} of {policy.groups}" if policy.groups else ""
        table.add_row(
            policy.name,
            answers,
            f"@{policy.newest}",
            "" if policy.held_out is None else f"{policy.held_out.success:.3f} {_of(policy.held_out)}",
            "" if policy.training is None else f"{policy.training.mean:.3f} {_of(policy.training)}",
            f"[yellow]{dead}[/yellow]" if policy.groups and policy.dead_groups == policy.groups else dead,
            escape(visible(last_step(policy.last_step))),
        )
    return table


def traffic(traffic: Iterable[Traffic]) -> Table:
    """A table of what is answered now, by policy."""
    table = _table("policy", "requests", "tokens/s, 10 s", "tokens/s, 1 min", "prompt tokens/s", "completions/s")
    for load in traffic:
        table.add_row(
            load.policy or "(base model)",
            str(load.running),
            f"{load.tokens_now:,.1f}",
            f"{load.tokens:,.1f}",
            f"{load.prompt_tokens:,.1f}",
            f"{load.completions:.2f}",
        )
    return table


def open_job(open_job: OpenJob, now: float) -> Text:
    """A job that has not ended: its phases, its progress, how long it has been in them."""
    text = Text(f"{open_job.job.kind} of {open_job.job.policy}  ")
    for at, (name, state) in enumerate(open_job.phases):
        text.append(" ▸ " if at else "", style="dim")
        text.append(name, style=_PHASES[state])
    share = "" if open_job.job.progress is None else f", {open_job.job.progress:.0%}"
    return text.append(f"  {open_job.words}{share}, for {format_duration(now - open_job.since)}", style="dim")


def problem(problem: Problem) -> Text:
    """A problem and its remedy, in two lines."""
    return Text.assemble(("✗ ", "red"), visible(beginning(problem.what, 1000)), "\n  → ", visible(problem.remedy))


def last_step(job: Job | None) -> str:
    """How the last job of a policy ended, in words."""
    if job is None:
        return ""
    ago = "" if job.finished is None else f", {format_duration(time.time() - job.finished)} ago"
    if job.result is None:
        return f"{job.kind} {job.status.value}{ago}"
    if skipped := job.result.metrics.get("skipped"):
        return f"{job.kind} learnt nothing ({skipped}){ago}"
    reward = job.result.metrics.get("reward_mean")
    with_reward = f", reward {reward:.3f}" if isinstance(reward, float) else ""
    return f"{job.kind} made @{job.result.version}{with_reward}{ago}"


def _of(outcome: RunsOutcome) -> str:
    return f"(@{outcome.version}, {outcome.runs} runs)"


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in columns:
        table.add_column(name, no_wrap=name in ("policy", "engine", "answers"))
    return table
