"""`art-langgraph top`: live throughput of a server."""

from __future__ import annotations

import asyncio
import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

if TYPE_CHECKING:
    from trainer_server.common.status import ServerStatus


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
        asyncio.run(_watch(every, once, as_json))
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


async def _watch(every: float, once: bool, as_json: bool) -> None:
    from art_langgraph.cli.printing.server import screen_console
    from art_langgraph.client.client import TrainerClient

    console = screen_console()
    async with TrainerClient() as trainer:
        if as_json or once or not sys.stdout.isatty():
            while True:
                status = await trainer.status()
                if as_json:
                    print(status.model_dump_json(), flush=True)
                elif once:
                    console.print(screen(status, trainer.connection.url))
                else:
                    print(line(status), flush=True)
                if once:
                    return
                await asyncio.sleep(every)
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                live.update(screen(await trainer.status(), trainer.connection.url), refresh=True)
                await asyncio.sleep(every)


def screen(status: ServerStatus, url: str) -> RenderableType:
    """What the terminal shows.

    Args:
        status: Of the server.
        url: Its address.
    """
    from art_langgraph.cli.printing import server as parts

    shown: list[RenderableType] = [
        *parts.head(status, url),
        parts.traffic(status.traffic) if status.traffic else Text("no policy answered in the last minute", style="dim"),
        "",
        parts.engines(status.engines),
    ]
    if status.jobs:
        shown += ["", *(parts.open_job(job, status.time) for job in status.jobs)]
    if status.problems:
        shown += ["", Text(f"{len(status.problems)} problems: `art-langgraph status` has the remedies", style="red")]
    return Group(*shown)


def line(status: ServerStatus) -> str:
    """A look in one line."""
    at = time.strftime("%H:%M:%S", time.localtime(status.time))
    by_policy = ", ".join(
        f"{load.policy or '(base model)'} {load.tokens_now:,.1f} tokens/s ({load.running} requests)"
        for load in status.traffic
    )
    jobs = ", ".join(f"{open_job.job.kind} of {open_job.job.policy}: {open_job.phase}" for open_job in status.jobs)
    ready = sum(engine.state == "ready" for engine in status.engines)
    said = [
        f"{status.line.running} at engines, {status.line.waiting} in line",
        by_policy or "no policy answered in the last minute",
        f"{ready} of {len(status.engines)} engines ready",
        jobs,
    ]
    return f"{at} {'; '.join(filter(None, said))}"
