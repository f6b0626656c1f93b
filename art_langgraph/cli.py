"""`art-langgraph`: commands come from the entry-point group `art_langgraph.commands`, one per package."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from importlib.metadata import entry_points, version
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from art_langgraph.client import TrainerClient
from art_langgraph.store import TrajectoryStore
from trainer_server.wire import ARTError

GROUP = "art_langgraph.commands"


def policies_command() -> None:
    """List the policies of the trainer server, with their newest versions."""

    async def show() -> None:
        async with TrainerClient() as trainer:
            table = Table("policy", "newest", "rank", "base model", "reward of the last step")
            for policy in await trainer.policies():
                newest = (await trainer.versions(policy.name))[-1]
                reward = newest.metrics.get("reward_mean")
                table.add_row(
                    policy.name,
                    str(policy.latest),
                    str(policy.spec.rank),
                    policy.base_model,
                    f"{reward:.3f}" if isinstance(reward, float) else "",
                )
            Console().print(table)

    asyncio.run(show())


def trajectories_command(
    limit: Annotated[int, typer.Option(help="How many, newest first.", min=1)] = 20,
    store: Annotated[str | None, typer.Option(help="Store file; default: under ART_HOME.")] = None,
) -> None:
    """List recorded trajectories."""
    table = Table("id", "scenario", "nodes", "completions", "tool calls", "reward", "error")
    for one in TrajectoryStore(store).list(limit=limit):
        reward = "" if one.reward is None else f"{one.reward:.3f}"
        counts = [str(len(part)) for part in (one.nodes, one.completions, one.tool_calls)]
        table.add_row(one.id, one.scenario.id, *counts, reward, (one.error or "")[:60])
    Console().print(table)


def version_command() -> None:
    """Print the version of art-langgraph."""
    print(version("art-langgraph"))


def build() -> typer.Typer:
    """The whole command line. A package whose extra is not installed is named when one of its commands is asked for."""
    app = typer.Typer(
        name="art-langgraph",
        help="Reinforcement learning under any LangGraph agent. Start with `art-langgraph quickstart`.",
        no_args_is_help=True,
        pretty_exceptions_show_locals=False,
    )
    app.command("policies")(policies_command)
    app.command("trajectories")(trajectories_command)
    app.command("version")(version_command)
    for entry in entry_points(group=GROUP):
        try:
            register: Callable[[typer.Typer], None] = entry.load()
        except ImportError as error:
            _explain_missing(app, entry.name, error)
        else:
            register(app)
    return app


def _explain_missing(app: typer.Typer, name: str, error: ImportError) -> None:
    reason = str(error)

    @app.command(name, help=f"(not available: {reason})", hidden=True)
    def missing() -> None:
        raise ARTError(f"`{name}` is not available: {reason}. Install it: pip install 'art-langgraph[server]'")


def main() -> None:
    """Entry point. An error that we raised on purpose is one clean line; anything else keeps its traceback."""
    try:
        build()()
    except ARTError as error:
        Console(stderr=True, highlight=False).print(f"[red]error:[/red] {escape(str(error))}")
        sys.exit(1)
