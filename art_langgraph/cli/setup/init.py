"""`art-langgraph init`: training beside an existing `langgraph.json`."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from art_langgraph.cli.options import JsonOption
from art_langgraph.cli.printing.lists import print_json
from trainer_server.wire import ConfigError, ServerUnreachable
from trainer_server.wire.errors import HOW_TO_START

if TYPE_CHECKING:
    from art_langgraph.project.files import Scaffold

_SHOWN = 5
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
        made = scaffold(project, graph, policy)
    except OSError as error:
        raise ConfigError(f"{project.folder} cannot be written: {error}") from None
    if as_json:
        print_json({name: value for name, value in asdict(made).items() if name != "project"})
    else:
        print(_text(made))


def _text(summary: Scaffold) -> str:
    lines = [f"The graph {summary.graph!r} is {summary.place}."]
    if summary.written:
        lines.append(f"Written: {', '.join(summary.written)}.")
    if summary.kept:
        lines.append(f"Kept, because it is there: {', '.join(summary.kept)}.")
    if summary.problem:
        lines.append(f"The graph could not be loaded here ({summary.problem}), so scenarios.jsonl has texts as inputs.")
    todo = [] if summary.asks and not summary.models else [_model(summary)]
    todo.append("Write tasks into scenarios.jsonl, twenty or more, and into train.py what a good run is (reward).")
    if isinstance(summary.project.environment, dict) and "ART_BASE_URL" not in summary.project.environment:
        todo.append(f'Add "ART_BASE_URL": "{summary.url}" to "env" in {summary.project.path.name}.')
    if _answers(summary.url):
        lines.append(f"The trainer server at {summary.url} answers.")
    else:
        todo.append(
            f"Start the server in another terminal: art-langgraph serve. None answers at {summary.url}. Once before: "
            "pip install 'art-langgraph[server]' and art-langgraph engine install. If it runs on another machine: "
            "art-langgraph connect URL."
            if sys.platform == "linux"
            else f"No trainer server answers at {summary.url}. {HOW_TO_START}."
        )
    todo.append(f"cd {summary.project.folder} && python train.py --steps 1")
    return "\n".join([*lines, "Next:", *(f"{number}. {text}" for number, text in enumerate(todo, 1))])


def _answers(url: str) -> bool:
    """Whether a trainer server answers. It is asked without a token."""
    from art_langgraph.cli.setup.check import check_address

    try:
        check_address(url, insecure=True)
    except (ConfigError, ServerUnreachable):
        return False
    return True


def _model(summary: Scaffold) -> str:
    model = f'ChatART(policy="{summary.policy}")  (from art_langgraph import ChatART)'
    if not summary.models:
        return f"Let the graph ask the policy: its chat model is {model}."
    where = [f"   {file}:{line}  {call}" for file, line, call in summary.models[:_SHOWN]]
    more = [f"   and {len(summary.models) - _SHOWN} more"] if len(summary.models) > _SHOWN else []
    return "\n".join(
        [f"Let the graph ask the policy. Replace what should be trained of these by {model}:", *where, *more]
    )
