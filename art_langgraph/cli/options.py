"""Options that several commands share, and how their values are read."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

import typer

from art_langgraph.loop.options import help_of
from trainer_server.wire import ConfigError
from trainer_server.wire.text import moment

if TYPE_CHECKING:
    from art_langgraph.judge.ruler import Ruler
    from art_langgraph.llm.llm import LLM
    from art_langgraph.store import TrajectoryStore
    from art_langgraph.trajectory import Trajectory

RunArgument = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="Id of a trajectory, or of LangGraph's run. The first characters suffice if they are unique.",
    ),
]
StoreOption = Annotated[
    str | None,
    typer.Option("--store", help="Store file, or postgresql://…; default: what ART_STORE names, or under ART_HOME."),
]
GraphOption = Annotated[str | None, typer.Option("--graph", help="Only runs of this graph.")]
ThreadOption = Annotated[str | None, typer.Option("--thread", help="Only runs on this thread.")]
SinceOption = Annotated[str | None, typer.Option("--since", help="Only runs from then on: 30m, 2h, 7d, or a date.")]
MinOption = Annotated[float | None, typer.Option("--min-reward", help="Only runs with at least this reward.")]
MaxOption = Annotated[float | None, typer.Option("--max-reward", help="Only runs with at most this reward.")]
ErrorOption = Annotated[
    bool | None, typer.Option("--error/--no-error", help="Only runs that raised, or only runs that did not.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
JudgeOption = Annotated[
    str | None,
    typer.Option(
        "--judge", help="Model that compares the runs of a scenario: openai/gpt-4o-mini, art/agent@3 or art/base."
    ),
]
UrlOption = Annotated[
    str | None,
    typer.Option("--judge-url", help="OpenAI-compatible endpoint of the judge; its key is read from ART_JUDGE_KEY."),
]
RubricOption = Annotated[
    str | None, typer.Option("--rubric", help="What a good run is: a text, or @FILE. Default: it reaches the goal.")
]
LrOption = Annotated[float, typer.Option("--lr", help="Learning rate.", min=0.0)]
AggregationOption = Annotated[
    Literal["loss_type", "trajectory"],
    typer.Option(
        "--loss-aggregation",
        help="How tokens are averaged: as the loss has it, or over each run first, so that a run with many model calls "
        "weighs what a run with a single one does.",
    ),
]
VotesOption = Annotated[int, typer.Option("--votes", help="How often the judge is asked about each scenario.", min=1)]


def with_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Decorator: a parameter that is a dataclass becomes a flag for each of its fields, with the help of its docstring.

    Args:
        command: The function of the command. Such a parameter is annotated with its class and a panel of the help:
            `Annotated[LoopFlags, "Training loop"]`.
    """
    hints = get_type_hints(command, include_extras=True)
    origins = {name: getattr(hint, "__origin__", None) for name, hint in hints.items()}
    dataclasses: dict[str, Any] = {name: origin for name, origin in origins.items() if is_dataclass(origin)}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        if name in dataclasses:
            parameters += _flags(dataclasses[name], *hints[name].__metadata__)
        else:
            kind = inspect.Parameter.KEYWORD_ONLY
            parameters.append(parameter.replace(annotation=hints[name], kind=kind))

    @wraps(command)
    def call(**values: Any) -> None:
        for name, options in dataclasses.items():
            values[name] = options(**{option.name: values.pop(option.name) for option in fields(options)})
        command(**values)

    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return call


def _flags(options: Any, panel: str) -> Iterator[inspect.Parameter]:
    """A parameter of a command for each field of a dataclass."""
    declared, hints = {option.name: option for option in fields(options)}, get_type_hints(options)
    for name, meaning in help_of(options).items():
        option = typer.Option(flag(name), help=meaning, rich_help_panel=panel, **declared[name].metadata)
        default = inspect.Parameter.empty if declared[name].default is MISSING else declared[name].default
        yield inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[hints[name], option]
        )


def flag(name: str) -> str:
    """A field, as the command line writes it."""
    return f"--{name.replace('_', '-')}"


def short_patience() -> float:
    """Seconds for which a command that somebody waits for asks a server that is gone; longer ones ask for longer."""
    from art_langgraph.client.outages import retry_seconds

    return min(retry_seconds(), 5.0)


def filters(
    graph: str | None,
    thread: str | None,
    since: str | None,
    min_reward: float | None = None,
    max_reward: float | None = None,
    error: bool | None = None,
) -> dict[str, Any]:
    """Options of the command line as arguments of `TrajectoryStore.list`.

    Args:
        graph: Name of a graph.
        thread: Id of a thread.
        since: As `moment` reads it.
        min_reward: The least reward.
        max_reward: The greatest reward.
        error: Whether the run raised; None: either.

    Raises:
        ConfigError: `since` is no time.
    """
    return {
        "graph": graph,
        "thread": thread,
        "since": None if since is None else moment(since),
        "min_reward": min_reward,
        "max_reward": max_reward,
        "error": error,
    }


def why_empty(store: TrajectoryStore, requested_filters: Mapping[str, Any]) -> str:
    """Why there is no run to show, and what to do.

    Args:
        store: The store, which has no run that was asked for.
        requested_filters: What was asked for, as `filters` gives it.
    """
    if any(value is not None for value in requested_filters.values()) and store.list(limit=1):
        return f"{store.name} has runs, and none of them fits these options: leave some of them out"
    if begun := len(store.unfinished()):
        return f"{store.name} has no run that has ended; {begun} have begun, and are under way or were cut off"
    return (
        f"{store.name} has no runs. In Python, train(…, store=TrajectoryStore()) writes them there, and so do rollout, "
        "gather and evaluate. `langgraph dev` with the capture app and `art-langgraph train` do it by themselves"
    )


def load_object(name: str) -> Any:
    """Imports the object that `module:attribute` names; searches the current directory too. Raises ConfigError."""
    module, colon, attribute = name.partition(":")
    if not colon:
        raise ConfigError(f"{name}: expected module:attribute, such as my_agent:graph")
    sys.path.insert(0, "")
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{name} cannot be imported: {error}") from None


def find_trajectory(store: TrajectoryStore, run: str) -> Trajectory:
    """A recorded run, by an id or by the first characters of an id.

    Args:
        store: Where to look.
        run: Id of the trajectory or of LangGraph's run, or the first characters of either.

    Raises:
        ConfigError: No run has such an id, or several have.
    """
    if trajectory := search_trajectory(store, run):
        return trajectory
    raise ConfigError(f"{store.name} has no run {run!r}; `art-langgraph trajectories list` shows what it has")


def search_trajectory(store: TrajectoryStore, run: str) -> Trajectory | None:
    """The same, or None where no run has such an id. Raises ConfigError where several have."""
    if trajectory := store.find(run):
        return trajectory
    ids = store.ids_with_prefix(run)
    if len(ids) > 1:
        raise ConfigError(several(run, ids))
    return store.find(ids[0]) if ids else None


def several(prefix: str, ids: list[str]) -> str:
    """The message for a prefix that several ids begin with."""
    rest = f", and {len(ids) - 5} more" if len(ids) > 5 else ""
    return f"{len(ids)} ids begin with {prefix!r}: {', '.join(ids[:5])}{rest}. Give more characters"


def make_llm(model: str, url: str | None) -> LLM:
    """The language model that `--judge` and `--judge-url` name; its key is read from ART_JUDGE_KEY."""
    import os

    from art_langgraph.llm.llm import LLM

    return LLM(model, base_url=url, api_key=os.environ.get("ART_JUDGE_KEY"))


def make_ruler(judge: str, url: str | None, rubric: str | None, votes: int) -> Ruler:
    """The judge that the options name.

    Args:
        judge: The value of --judge.
        url: The value of --judge-url.
        rubric: The value of --rubric: a text, or `@FILE`.
        votes: The value of --votes.

    Raises:
        ConfigError: The rubric cannot be read.
    """
    from art_langgraph.judge.ruler import RUBRIC, Ruler

    return Ruler(make_llm(judge, url), rubric_text(rubric) or RUBRIC, votes=votes)


def rubric_text(rubric: str | None) -> str | None:
    """The rubric: a text, or the content of the file that `@FILE` names. Raises ConfigError."""
    if rubric is None or not rubric.startswith("@"):
        return rubric
    try:
        return Path(rubric[1:]).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(f"--rubric {rubric}: {error}") from None
