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

from art_langgraph.cli import (
    deletion,
    evaluate,
    policies,
    recorded_runs,
    setup,
    sft,
    status,
    train,
    trajectories,
    watch,
)
from art_langgraph.cli.options import JsonOption
from art_langgraph.cli.overview import FIRST_STEPS, CommandGroup, first_steps, group_commands
from art_langgraph.cli.printing import print_outcome
from trainer_server.common.extensions import extension_of, register_commands
from trainer_server.common.installation import extra_command
from trainer_server.common.proxies import exempt_loopback
from trainer_server.wire import ARTError

GROUP = "art_langgraph.commands"
_EXTENSIONS = ("art_langgraph.cli.traces", "art_langgraph.cli.autopilot", "art_langgraph.cli.autorl")
"""Modules whose function `register` adds the commands of an extension."""
_ABOUT = "Reinforcement learning under any LangGraph agent."


def show_first_steps(context: typer.Context) -> None:
    """Shows what one does with this program, where no command is named."""
    if context.invoked_subcommand is None:
        print(
            f"{_ABOUT} What one does with it, in this order:\n\n{first_steps()}\n\nAll commands: art-langgraph --help"
        )


def version_command(as_json: JsonOption = False) -> None:
    """Print the version of art-langgraph."""
    number = version("art-langgraph")
    print_outcome({"version": number}, number, as_json)


_COMMANDS: dict[str, Callable[..., None]] = {
    "init": setup.init_command,
    "connect": setup.connect_command,
    "disconnect": setup.disconnect_command,
    "status": status.status_command,
    "watch": watch.watch_command,
    "top": status.top_command,
    "feedback": recorded_runs.feedback_command,
    "score": recorded_runs.score_command,
    "train": train.train_command,
    "evaluate": evaluate.evaluate_command,
    "sft": sft.sft_command,
    "export": policies.export_command,
    "fork": policies.fork_command,
    "score-version": policies.score_command,
    "promote": policies.promote_command,
    "version": version_command,
}
_GROUPS: dict[str, typer.Typer] = {
    "trajectories": trajectories.app,
    "policies": policies.app,
    "jobs": policies.jobs_app,
    "threads": deletion.threads_app,
}


def build() -> typer.Typer:
    """Builds the command line. A command whose extra is not installed names the missing package when it is called."""
    app = typer.Typer(
        name="art-langgraph",
        help=f"{_ABOUT} Start with `art-langgraph {FIRST_STEPS[0][0]}`.",
        cls=CommandGroup,
        pretty_exceptions_show_locals=False,
    )
    app.callback(invoke_without_command=True)(show_first_steps)
    for name, group in _GROUPS.items():
        app.add_typer(group, name=name)
    for name, command in _COMMANDS.items():
        app.command(name)(command)
    register_commands(app, _EXTENSIONS)
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
    group_commands(app)
    return app


def _explain_missing(app: typer.Typer, name: str, error: ImportError) -> None:
    reason = str(error)

    @app.command(name, help=f"(not available: {reason})", hidden=True)
    def missing() -> None:
        raise ARTError(f"`{name}` is not available: {reason}. Install it: {extra_command('server')}")


def main() -> None:
    """Entry point. An ARTError is printed as a single line; any other error keeps its traceback."""
    if isinstance(sys.stdout, TextIOWrapper):
        # Models write half surrogate pairs, which a terminal cannot show. And a pipe gets each line at once.
        sys.stdout.reconfigure(errors="backslashreplace", line_buffering=True)
    exempt_loopback()
    try:
        build()()
    except ARTError as error:
        Console(emoji=False, stderr=True, highlight=False, soft_wrap=True).print(
            f"[red]error:[/red] {escape(str(error))}"
        )
        sys.exit(1)
