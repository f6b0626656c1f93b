"""`art-langgraph`: commands come from the entry-point group `art_langgraph.commands`, one per package.

Modules of commands import LangChain, litellm and the store inside of their commands, so that `--help` takes no seconds.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.metadata import entry_points, version
from io import TextIOWrapper

import typer
from rich.console import Console
from rich.markup import escape

from art_langgraph.cli.options import JsonOption
from art_langgraph.cli.printing.lists import print_json
from trainer_server.common.extensions import extension_of, register_commands
from trainer_server.common.proxies import exempt_loopback
from trainer_server.wire import ARTError

GROUP = "art_langgraph.commands"
COMMANDS = (
    "art_langgraph.cli.setup.commands",
    "art_langgraph.cli.watching.commands",
    "art_langgraph.cli.trajectories",
    "art_langgraph.cli.traces",
    "art_langgraph.cli.scoring",
    "art_langgraph.cli.training.train",
    "art_langgraph.cli.training.imitation",
    "art_langgraph.cli.autopilot",
    "art_langgraph.cli.policies",
    "art_langgraph.cli.jobs",
    "art_langgraph.cli.autorl",
    "art_langgraph.cli.deletion",
)
"""Modules whose function `register` adds commands, in the order of `--help`."""
_FIRST = "quickstart" if sys.platform == "linux" else "connect URL"


def version_command(as_json: JsonOption = False) -> None:
    """Print the version of art-langgraph."""
    installed = version("art-langgraph")
    if as_json:
        print_json({"version": installed})
    else:
        print(installed)


def build() -> typer.Typer:
    """Builds the command line. A command whose extra is not installed names the missing package when it is called."""
    app = typer.Typer(
        name="art-langgraph",
        help=f"Reinforcement learning under any LangGraph agent. Start with `art-langgraph {_FIRST}`.",
        no_args_is_help=True,
        pretty_exceptions_show_locals=False,
    )
    register_commands(app, COMMANDS)
    app.command("version")(version_command)
    for entry in entry_points(group=GROUP):
        extension = extension_of(entry.module)
        if extension is not None and not extension.present:
            register_commands(app, [entry.module])
            continue
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
    """Entry point. An ARTError is printed as a single line; any other error keeps its traceback."""
    if isinstance(sys.stdout, TextIOWrapper):
        # Models write half surrogate pairs, which a terminal cannot show. And a pipe gets each line at once.
        sys.stdout.reconfigure(errors="backslashreplace", line_buffering=True)
    exempt_loopback()
    try:
        build()()
    except ARTError as error:
        Console(stderr=True, highlight=False, soft_wrap=True).print(f"[red]error:[/red] {escape(str(error))}")
        sys.exit(1)
