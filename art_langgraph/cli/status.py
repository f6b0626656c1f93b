"""`art-langgraph status` and `top`: everything that a server does on one screen, and its throughput as it changes."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from art_langgraph.cli.options import JsonOption, ask_server
from art_langgraph.cli.printing import print_json
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
from trainer_server.wire.text import beginning, quantity, visible

if TYPE_CHECKING:
    from art_langgraph.client.client import TrainerClient


_GIB = 1 << 30
_WIDE = 160
"""Columns of a screen in a pipe."""
_STATES = {"ready": "green", "resting": "yellow", "not ready": "red"}
_PHASES = {"done": "dim", "now": "bold green", "later": "dim"}


def screen_console() -> Console:
    """Prints screens: as wide as the terminal, and in a pipe wide enough for their tables."""
    console = Console(emoji=False, highlight=False)
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


def server_head(status: ServerStatus, url: str) -> list[RenderableType]:
    """What the screens of `status` and `top` begin with: the server, its requests, its tokens, its memory.

    Args:
        status: Of the server.
        url: Its address.
    """
    return [
        headline(status, url),
        f"requests  {request_text(status)}",
        f"tokens    {token_text(status)}",
        f"memory    {memory_text(status.memory)}",
        "",
    ]


def headline(status: ServerStatus, url: str) -> Text:
    """A line: where the server is, whether it answers, its base model."""
    state = Text("ready", style="green") if status.ready else Text("not ready", style="bold red")
    trainer = "" if status.trainer else " · the trainer does not run"
    since = f" · {status.model} · up {format_duration(status.time - status.started)}{trainer}"
    return Text.assemble(url, " · ", state, visible(since))


def request_text(status: ServerStatus) -> str:
    """The line, in words."""
    line = status.line
    text = f"{quantity(line.running, 'request')} at engines, {line.waiting} in line, {line.most:,} at most"
    return text + (f"; {line.refused:,} refused" if line.refused else "")


def token_text(status: ServerStatus) -> str:
    """How fast the server answers, in words."""
    completions = sum(load.completions for load in status.traffic)
    prompts = sum(load.prompt_tokens for load in status.traffic)
    return f"{status.tokens:,.1f} sampled/s, {prompts:,.1f} of prompts/s, {completions:.2f} completions/s (last minute)"


def memory_text(memory: MemoryStatus) -> str:
    """Memory, in words."""
    parts = [f"{name} {size / _GIB:.2f} GiB" for name, size in memory.parts.items()]
    if memory.used is not None:
        parts.append(f"{memory.used / _GIB:.1f} of {memory.total / _GIB:.1f} GiB of main memory in use")
    parts += [f"GPU {at} {gpu.used / _GIB:.1f} of {gpu.total / _GIB:.1f} GiB" for at, gpu in enumerate(memory.gpus)]
    return ", ".join(parts)


def engine_table(engines: Iterable[EngineStatus]) -> Table:
    """A table of engines."""
    table = _table("engine", "state", "requests", "restarts", "adapters")
    for engine in engines:
        state = f"[{_STATES[engine.state]}]{engine.state}[/]"
        adapters = escape(", ".join(engine.adapters))
        table.add_row(escape(visible(engine.url)), state, str(engine.requests), str(engine.restarts), adapters)
    return table


def policy_table(policies: Iterable[PolicyStatus]) -> Table:
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
            escape(visible(_last_step(policy.last_step))),
        )
    return table


def traffic_table(traffic: Iterable[Traffic]) -> Table:
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


def job_line(open_job: OpenJob, now: float) -> Text:
    """A job that has not ended: its phases, its progress, how long it has been in them."""
    text = Text(f"{open_job.job.kind} of {open_job.job.policy}  ")
    for at, (name, state) in enumerate(open_job.phases):
        text.append(" ▸ " if at else "", style="dim")
        text.append(name, style=_PHASES[state])
    share = "" if open_job.job.progress is None else f", {open_job.job.progress:.0%}"
    return text.append(f"  {open_job.words}{share}, for {format_duration(now - open_job.since)}", style="dim")


def problem_lines(problem: Problem) -> Text:
    """A problem and its remedy, in two lines."""
    return Text.assemble(("✗ ", "red"), visible(beginning(problem.what, 1000)), "\n  → ", visible(problem.remedy))


def _last_step(job: Job | None) -> str:
    """How the last job of a policy ended, in words."""
    if job is None:
        return ""
    ago = "" if job.finished is None else f", {format_duration(time.time() - job.finished)} ago"
    if job.result is None:
        return f"{job.kind} {job.status.value}{ago}"
    if reason := job.result.metrics.get("skipped"):
        return f"{job.kind} learnt nothing ({reason}){ago}"
    reward = job.result.metrics.get("reward_mean")
    with_reward = f", reward {reward:.3f}" if isinstance(reward, float) else ""
    return f"{job.kind} made @{job.result.version}{with_reward}{ago}"


def _of(outcome: RunsOutcome) -> str:
    return f"(@{outcome.version}, {quantity(outcome.runs, 'run')})"


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in columns:
        table.add_column(name, no_wrap=name in ("policy", "engine", "answers"))
    return table


def status_command(as_json: JsonOption = False) -> None:
    """Show the state of the trainer server: engines, requests, jobs, policies, memory, problems.

    For each policy: the version that its name means, the newest one, held-out success and reward of the newest versions
    that were measured, and how many groups of the last versions teach nothing. Each problem comes with a remedy.

    Ends with status 1 while no completions can be answered. `watch` follows a training, `top` the throughput.

    \b
    art-langgraph status
    art-langgraph status --json | jq '.policies[] | {name, newest, held_out}'
    """

    async def read_status(trainer: TrainerClient) -> tuple[ServerStatus, str]:
        return await trainer.status(), trainer.connection.url

    status, url = ask_server(read_status)
    if as_json:
        print_json({"url": url, **status.model_dump(mode="json")})
    else:
        console = screen_console()
        for part in status_screen(status, url):
            console.print(part)
    if not status.ready:
        raise typer.Exit(1)


def status_screen(status: ServerStatus, url: str) -> list[RenderableType]:
    """The parts of the screen, from top to bottom.

    Args:
        status: Of the server.
        url: Its address.
    """
    parts: list[RenderableType] = [*server_head(status, url), engine_table(status.engines), ""]
    parts += [job_line(job, status.time) for job in status.jobs] or ["no job is open"]
    parts += ["", policy_table(status.policies) if status.policies else "there is no policy yet"]
    if status.problems:
        parts += ["", *(problem_lines(problem) for problem in status.problems)]
    return parts


def top_command(
    every: Annotated[float, typer.Option(help="Seconds between two looks.", min=0.2)] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Look once, and end.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a line of JSON for each look, for programs.")] = False,
) -> None:
    """Show the throughput of the trainer server as it changes: requests, tokens per second by policy, engines, memory.

    Tokens of an answer are counted when it ends, so long answers make the ten-second rate jump. Ctrl-C ends it. Where
    the output is no terminal, each look is a line.

    \b
    art-langgraph top
    art-langgraph top --once --json | jq .traffic
    """
    try:
        asyncio.run(_print_looks(every, once, as_json))
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


async def _print_looks(every: float, once: bool, as_json: bool) -> None:
    from art_langgraph.client.client import TrainerClient

    console = screen_console()
    async with TrainerClient() as trainer:
        if as_json or once or not sys.stdout.isatty():
            while True:
                status = await trainer.status()
                if as_json:
                    print(status.model_dump_json(), flush=True)
                elif once:
                    console.print(top_screen(status, trainer.connection.url))
                else:
                    print(one_line(status), flush=True)
                if once:
                    return
                await asyncio.sleep(every)
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                live.update(top_screen(await trainer.status(), trainer.connection.url), refresh=True)
                await asyncio.sleep(every)


def top_screen(status: ServerStatus, url: str) -> RenderableType:
    """What the terminal shows.

    Args:
        status: Of the server.
        url: Its address.
    """
    parts: list[RenderableType] = [
        *server_head(status, url),
        traffic_table(status.traffic) if status.traffic else Text("no policy answered in the last minute", style="dim"),
        "",
        engine_table(status.engines),
    ]
    if status.jobs:
        parts += ["", *(job_line(job, status.time) for job in status.jobs)]
    if status.problems:
        parts += [
            "",
            Text(f"{quantity(len(status.problems), 'problem')}: `art-langgraph status` has the remedies", style="red"),
        ]
    return Group(*parts)


def one_line(status: ServerStatus) -> str:
    """A look in one line."""
    at = time.strftime("%H:%M:%S", time.localtime(status.time))
    by_policy = ", ".join(
        f"{load.policy or '(base model)'} {load.tokens_now:,.1f} tokens/s ({quantity(load.running, 'request')})"
        for load in status.traffic
    )
    jobs = ", ".join(f"{open_job.job.kind} of {open_job.job.policy}: {open_job.phase}" for open_job in status.jobs)
    ready = sum(engine.state == "ready" for engine in status.engines)
    parts = [
        f"{status.line.running} at engines, {status.line.waiting} in line",
        by_policy or "no policy answered in the last minute",
        f"{ready} of {quantity(len(status.engines), 'engine')} ready",
        jobs,
    ]
    return f"{at} {'; '.join(filter(None, parts))}"
