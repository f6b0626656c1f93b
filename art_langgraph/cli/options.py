"""Options that several commands share, and how their values are read."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer

from trainer_server.wire import ConfigError, GRPOConfig, ServerError
from trainer_server.wire.text import moment

if TYPE_CHECKING:
    from art_langgraph.client.client import TrainerClient
    from art_langgraph.judge.ruler import Ruler
    from art_langgraph.llm.llm import LLM
    from art_langgraph.store import TrajectoryStore
    from art_langgraph.trajectory import Trajectory

T = TypeVar("T")

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
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


@dataclass(frozen=True, kw_only=True)
class SinceFilter:
    """Which recorded runs are meant, by their time.

    Args:
        since: Only runs from then on: 30m, 2h, 7d, or a date.
    """

    since: str | None = None

    def moment(self) -> float | None:
        """The Unix time from which on runs count; None: all do. Raises ConfigError where `since` is no time."""
        return None if self.since is None else moment(self.since)

    def query(self) -> dict[str, Any]:
        """The filter as arguments of `TrajectoryStore.list`. Raises ConfigError where `since` is no time."""
        return asdict(self) | {"since": self.moment()}


@dataclass(frozen=True, kw_only=True)
class GraphFilter(SinceFilter):
    """Which recorded runs are meant, by their graph too.

    Args:
        graph: Only runs of this graph.
    """

    graph: str | None = None


@dataclass(frozen=True, kw_only=True)
class RunFilter(GraphFilter):
    """Which recorded runs are meant, by what became of them too.

    Args:
        thread: Only runs on this thread.
        error: Only runs that raised, or only runs that did not.
    """

    thread: str | None = None
    error: bool | None = field(default=None, metadata={"flag": "--error/--no-error"})


@dataclass(frozen=True, kw_only=True)
class RewardFilter(RunFilter):
    """Which recorded runs are meant, by their reward too.

    Args:
        min_reward: Only runs with at least this reward.
        max_reward: Only runs with at most this reward.
    """

    min_reward: float | None = None
    max_reward: float | None = None


@dataclass(frozen=True, kw_only=True)
class StepFlags:
    """A training step on the command line.

    Args:
        lr: Learning rate.
        loss_aggregation: How tokens are averaged: as the loss has it, or over each run first, so that a run with many
            model calls weighs what a run with a single one does.
    """

    lr: float = field(default=GRPOConfig().lr, metadata={"min": 0.0})
    loss_aggregation: Literal["loss_type", "trajectory"] = "loss_type"

    def config(self) -> GRPOConfig:
        """The settings of the step."""
        return GRPOConfig(lr=self.lr, loss_aggregation=self.loss_aggregation)


@dataclass(frozen=True, kw_only=True)
class NodeFlags(StepFlags):
    """A training step of some nodes on the command line.

    Args:
        node: Train only this node; repeatable, patterns allowed.
    """

    node: list[str] | None = None


@dataclass(frozen=True, kw_only=True)
class JudgeFlags:
    """A judge on the command line.

    Args:
        judge: Model that compares the runs of a scenario: openai/gpt-4o-mini, art/agent@3 or art/base.
        judge_url: OpenAI-compatible endpoint of the judge; its key is read from ART_JUDGE_KEY.
        rubric: What a good run is: a text, or @FILE. Default: it reaches the goal.
        votes: How often the judge is asked about each scenario.
    """

    judge: str | None = None
    judge_url: str | None = None
    rubric: str | None = None
    votes: int = field(default=1, metadata={"min": 1})

    def ruler(self) -> Ruler | None:
        """The judge; None: there is none. Raises ConfigError where the rubric cannot be read."""
        from art_langgraph.judge.ruler import RUBRIC, Ruler

        if self.judge is None:
            return None
        return Ruler(make_llm(self.judge, self.judge_url), rubric_text(self.rubric) or RUBRIC, votes=self.votes)


def ask_server(request: Callable[[TrainerClient], Awaitable[T]]) -> T:
    """Sends the requests of a command to the trainer server. A server that is gone is waited for by `short_patience`.

    Args:
        request: Sends them.
    """

    async def send() -> T:
        from art_langgraph.client.client import TrainerClient

        async with TrainerClient(retry_for=short_patience()) as trainer:
            return await request(trainer)

    return asyncio.run(send())


async def unless_missing(answer: Awaitable[T]) -> T | None:
    """An answer of the trainer server; None where it has no such thing (404)."""
    try:
        return await answer
    except ServerError as error:
        if error.status != 404:
            raise
        return None


def short_patience() -> float:
    """Seconds for which a short command waits for a server that is gone. Long ones wait as `ART_RETRY_FOR` says."""
    from art_langgraph.client.outages import retry_seconds

    return min(retry_seconds(), 5.0)


def existing_store(name: str | None) -> TrajectoryStore:
    """The store of a command that reads runs or changes them: a misspelt `--store` must not make an empty one.

    Args:
        name: What `--store` names; None: as `TrajectoryStore` has it.

    Raises:
        ConfigError: There is no such file; or as `TrajectoryStore`.
    """
    from art_langgraph.store import TrajectoryStore

    if name is not None and not re.search("://|=", name) and not Path(name).exists():  # an address is no path
        raise ConfigError(f"{name} does not exist: name the store of the runs by --store or ART_STORE")
    return TrajectoryStore(name)


def why_empty(store: TrajectoryStore, requested_filters: Mapping[str, Any]) -> str:
    """Why there is no run to show, and what to do.

    Args:
        store: The store, which has no run that was asked for.
        requested_filters: What was asked for, as `RunFilter.query` gives it.
    """
    if any(value is not None for value in requested_filters.values()) and store.list(limit=1):
        return f"{store.name} has runs, and none of them fits these options: leave some of them out"
    if count := len(store.unfinished()):
        return f"{store.name} has no run that has ended; {count} have begun, and are under way or were cut off"
    return (
        f"{store.name} has no runs. In Python, train(…, store=TrajectoryStore()) writes them there; rollout, gather "
        "and evaluate take it too. `langgraph dev` with the capture app and `art-langgraph train` do it by themselves"
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


def load_function(name: str) -> Any:
    """The same for what must be a function. Raises ConfigError."""
    loaded = load_object(name)
    if not callable(loaded):
        raise ConfigError(f"{name} is no function, but {type(loaded).__name__}: {loaded!r:.100}")
    return loaded


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


def rubric_text(rubric: str | None) -> str | None:
    """The rubric: a text, or the content of the file that `@FILE` names. Raises ConfigError."""
    if rubric is None or not rubric.startswith("@"):
        return rubric
    try:
        return Path(rubric[1:]).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(f"--rubric {rubric}: {error}") from None
