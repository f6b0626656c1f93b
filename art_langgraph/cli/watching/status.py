"""`art-langgraph status`: one screen of everything that a server does."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import typer
from rich.console import RenderableType

from art_langgraph.cli.options import JsonOption, short_patience
from art_langgraph.cli.printing.lists import print_json

if TYPE_CHECKING:
    from trainer_server.common.status import ServerStatus


def status_command(as_json: JsonOption = False) -> None:
    """Show the state of the trainer server: engines, requests, jobs, policies, memory, problems.

    For each policy: the version that its name means, the newest one, held-out success and reward of the newest versions
    that were measured, and how many groups of the last versions teach nothing. Each problem comes with a remedy.

    Ends with status 1 while no completions can be answered. `watch` follows a training, `top` the throughput.

    \b
    art-langgraph status
    art-langgraph status --json | jq '.policies[] | {name, newest, held_out}'
    """

    async def read_status() -> tuple[ServerStatus, str]:
        from art_langgraph.client.client import TrainerClient

        async with TrainerClient(retry_for=short_patience()) as trainer:
            return await trainer.status(), trainer.connection.url

    status, url = asyncio.run(read_status())
    if as_json:
        print_json({"url": url, **status.model_dump(mode="json")})
    else:
        from art_langgraph.cli.printing.server import screen_console

        console = screen_console()
        for part in screen(status, url):
            console.print(part)
    if not status.ready:
        raise typer.Exit(1)


def screen(status: ServerStatus, url: str) -> list[RenderableType]:
    """The parts of the screen, from top to bottom.

    Args:
        status: Of the server.
        url: Its address.
    """
    from art_langgraph.cli.printing import server as parts

    shown: list[RenderableType] = [
        *parts.head(status, url),
        parts.engines(status.engines),
        "",
    ]
    shown += [parts.open_job(job, status.time) for job in status.jobs] or ["no job is open"]
    shown += ["", parts.policies(status.policies) if status.policies else "there is no policy yet"]
    if status.problems:
        shown += ["", *(parts.problem(problem) for problem in status.problems)]
    return shown
