"""`art-langgraph init`, `connect` and `disconnect`: training beside a `langgraph.json`, and the server to use."""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from art_langgraph.cli.options import JsonOption
from art_langgraph.cli.printing import print_outcome
from trainer_server.common import Connection, Home
from trainer_server.common.installation import extra_command
from trainer_server.wire import ConfigError, ServerUnreachable
from trainer_server.wire.errors import HOW_TO_START

if TYPE_CHECKING:
    from art_langgraph.project.files import Scaffold


_MODEL_LINES = 5
"""Lines that make a model, in the text."""


def init_command(
    folder: Annotated[Path, typer.Argument(help="Folder of the langgraph.json.")] = Path(),
    graph: Annotated[str | None, typer.Option(help="Name of the graph. Default: the only one.")] = None,
    policy: Annotated[
        str | None, typer.Option(help="Name of the policy to train. Default: the one that the graph asks, or agent.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write what training needs beside a langgraph.json: train.py, scenarios.jsonl, the server's address in .env.

    Nothing is overwritten, and the graph is not changed: the lines that make a chat model are named.
    """
    from art_langgraph.project.files import scaffold
    from art_langgraph.project.langgraph_json import Project

    project = Project.read(folder)
    try:
        summary = scaffold(project, graph, policy)
    except OSError as error:
        raise ConfigError(f"{project.folder} cannot be written: {error}") from None
    record = {name: value for name, value in asdict(summary).items() if name != "project"}
    print_outcome(record, _summary_text(summary), as_json)


def _summary_text(summary: Scaffold) -> str:
    lines = [f"The graph {summary.graph!r} is {summary.place}."]
    if summary.written:
        lines.append(f"Written: {', '.join(summary.written)}.")
    if summary.kept:
        lines.append(f"Kept, because it is there: {', '.join(summary.kept)}. To have one made anew, rename it first.")
    if summary.problem:
        lines.append(
            f"The graph could not be loaded here ({summary.problem}), so scenarios.jsonl has texts as inputs: change "
            "them where it takes something else."
        )
    todo = [] if summary.asks and not summary.models else [_model_step(summary)]
    todo.append("Write tasks into scenarios.jsonl, twenty or more, and into train.py what a good run is (reward).")
    if isinstance(summary.project.environment, dict) and "ART_BASE_URL" not in summary.project.environment:
        todo.append(f'Add "ART_BASE_URL": "{summary.url}" to "env" in {summary.project.path.name}.')
    if _answers(summary.url):
        lines.append(f"The trainer server at {summary.url} answers.")
    else:
        todo.append(
            f"Start the server in another terminal: art-langgraph serve. None answers at {summary.url}. Once before: "
            f"{extra_command('server')} and art-langgraph engine install. If it runs on another machine: art-langgraph "
            "connect URL."
            if sys.platform == "linux"
            else f"No trainer server answers at {summary.url}. {HOW_TO_START}."
        )
    todo.append(f"cd {shlex.quote(str(summary.project.folder))} && python train.py --steps 1")
    return "\n".join([*lines, "Next:", *(f"{number}. {text}" for number, text in enumerate(todo, 1))])


def _answers(url: str) -> bool:
    """Whether a trainer server answers. It is asked without a token."""
    from art_langgraph.cli.server_check import check_address

    try:
        check_address(url, insecure=True)
    except (ConfigError, ServerUnreachable):
        return False
    return True


def _model_step(summary: Scaffold) -> str:
    model = f'ChatART(policy="{summary.policy}")  (from art_langgraph import ChatART)'
    if not summary.models:
        return f"Let the graph ask the policy: its chat model is {model}."
    where = [f"   {file}:{line}  {call}" for file, line, call in summary.models[:_MODEL_LINES]]
    more = [f"   and {len(summary.models) - _MODEL_LINES} more"] if len(summary.models) > _MODEL_LINES else []
    return "\n".join(
        [f"Let the graph ask the policy. Replace what should be trained of these by {model}:", *where, *more]
    )


_VARIABLES = ("ART_BASE_URL", "ART_API_KEY")
"""Variables that come before what `connect` stores."""


def connect_command(
    url: Annotated[str, typer.Argument(help="Address of the server, as https://art.example.com:8400.")],
    insecure: Annotated[bool, typer.Option(help="Allow http to another machine, in a network that you trust.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Use a server on another machine: all programs of this user find it, until `disconnect`.

    The token is taken from ART_API_KEY; or from the standard input, if that is no terminal; or it is asked for. Address
    and token are kept in ART_HOME, in a file that only this user may read.

    Example: art-langgraph connect https://art.example.com:8400
    """
    from art_langgraph.cli.server_check import check_address, check_token

    url = check_address(url, insecure=insecure)
    connection = Connection(url, _token(url))
    token, home = check_token(connection), Home.find()
    home.connect(connection)
    until = f", until {datetime.fromtimestamp(token.expires):%Y-%m-%d %H:%M}" if token.expires else ""
    text = f"connected to {url} as {token.name}, scope {token.scope}{until}. Kept in {home.connection}"
    print_outcome({"url": url, **token.model_dump()}, text, as_json)
    for name in _VARIABLES:
        if name in os.environ:
            Console(emoji=False, stderr=True, soft_wrap=True).print(
                f"{name} is set, and comes first: programs take what it says"
            )


def disconnect_command(as_json: JsonOption = False) -> None:
    """Forget the server of `connect`: programs ask the one on this machine again. Its token is deleted here."""
    home = Home.find()
    was_connected = home.disconnect()
    text = f"disconnected: {home.connection} is deleted" if was_connected else "not connected to any server"
    print_outcome({"disconnected": was_connected}, text, as_json)


def _token(url: str) -> str:
    if token := os.environ.get("ART_API_KEY"):
        return token
    line = typer.prompt(f"Token for {url}", hide_input=True) if sys.stdin.isatty() else sys.stdin.readline()
    if not (token := str(line).strip()):
        raise ConfigError(
            "no token: set ART_API_KEY, or give it on the standard input. `art-langgraph tokens create` makes one, on "
            "the server's machine"
        )
    return token
