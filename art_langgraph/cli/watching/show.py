"""`art-langgraph trajectories show`: a run as the dashboard's viewer shows it, on the terminal."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from art_langgraph.cli.options import JsonOption, RunArgument, StoreOption, search_trajectory
from art_langgraph.cli.printing.lists import print_json
from trainer_server.wire import ConfigError

if TYPE_CHECKING:
    from art_langgraph.client.client import TrainerClient
    from art_langgraph.store import TrajectoryStore
    from art_langgraph.trajectory import Trajectory
    from trainer_server.common.run_tree import Item
    from trainer_server.wire import Completion

_MOST = 800
"""Characters of a message, without --full."""


def show_command(
    run: RunArgument,
    messages: Annotated[
        bool, typer.Option("--messages/--no-messages", help="Whether the messages follow the tree.")
    ] = True,
    full: Annotated[bool, typer.Option("--full", help="Print whole messages, however long they are.")] = False,
    as_json: JsonOption = False,
    store: StoreOption = None,
) -> None:
    """Show a run: the tree of its nodes with branches, attempts, subgraphs, model and MCP calls; then its messages.

    The numbers in the tree are those of the messages below. A run that is not in the store is asked of the trainer
    server, by the id of its rollout or trajectory. The server also knows the tokens: how many each answer has, and the
    prefix drift, which is how much of what was sampled the next prompts do not have.

    \b
    art-langgraph trajectories show tr-4f2a
    art-langgraph trajectories show tr-4f2a --json | jq .tree
    """
    from art_langgraph.cli.printing.messages import messages as lines
    from art_langgraph.cli.printing.tree import as_json as tree_json
    from art_langgraph.cli.printing.tree import facts, tree
    from art_langgraph.store import TrajectoryStore

    trajectory, rows, drift = asyncio.run(_read_run(TrajectoryStore(store), run))
    items = _items(trajectory, rows)
    if as_json:
        more = {
            "reward_reason": trajectory.reward_reason,
            "reward_error": trajectory.reward_error,
            "node_rewards": trajectory.node_rewards,
            "metrics": trajectory.metrics,
            "prefix_drift": drift,
        }
        print_json({**facts(trajectory), **more, "tree": tree_json(items)})
        return
    console = Console(highlight=False)
    console.print(tree(trajectory, items, drift=drift))
    if messages:
        for line in lines(items, most=None if full else _MOST):
            console.print(line, soft_wrap=not console.is_terminal)


def _items(trajectory: Trajectory, rows: dict[str, Completion]) -> list[Item]:
    from trainer_server.common.run_tree import tree
    from trainer_server.wire import RunTrace

    return tree(RunTrace.model_validate(trajectory.model_dump(mode="json")), list(rows.values()))


async def _read_run(store: TrajectoryStore, run: str) -> tuple[Trajectory, dict[str, Completion], str | None]:
    """A run, what the ledger has of it by the ids of its completions, and its prefix drift in words.

    Raises:
        ConfigError: Neither the store nor the server has such a run, or several have.
    """
    from art_langgraph.client.client import TrainerClient
    from trainer_server.wire import ServerError, ServerUnreachable

    trajectory = search_trajectory(store, run)
    why = "it has none either: it is asked by the whole id of a rollout or trajectory"
    rows: dict[str, Completion] = {}
    unknown: str | None = None
    try:
        async with TrainerClient(retry_for=0.0) as trainer:
            trajectory = trajectory or await _of_server(trainer, run)
            if trajectory is not None and (ids := _ids(trajectory)):
                rows = await trainer.completions(ids)
    except (ConfigError, ServerError, ServerUnreachable) as error:
        why, unknown = str(error), f"not known, the server has the tokens: {error}"
    if trajectory is None:
        raise ConfigError(
            f"{store.name} has no run {run!r}; `art-langgraph trajectories list` shows what it has. The trainer "
            f"server: {why}"
        )
    several = len(_ids(trajectory)) > 1
    return trajectory, rows, (unknown or _drift(_ids(trajectory), rows)) if several else None


def _ids(trajectory: Trajectory) -> list[str]:
    return [call.id for call in trajectory.completions if call.id]


async def _of_server(trainer: TrainerClient, run: str) -> Trajectory | None:
    """A run as its client reported it, else as the ledger has it; None: the server knows nothing of it."""
    from art_langgraph.trajectory import Trajectory
    from trainer_server.wire import ServerError

    try:
        trace = await trainer.trace(run)
        return Trajectory.model_validate(trace.model_dump(mode="json", exclude={"left_out"}))
    except ServerError as error:
        if error.status != 404:
            raise
    try:
        return await trainer.rollout(run)
    except ServerError as error:
        if error.status != 404:
            raise
        return None


def _drift(ids: list[str], rows: dict[str, Completion]) -> str:
    """The prefix drift of a run of several completions, in words."""
    from trainer_server.wire import prefix_drift

    completions = [rows[id] for id in ids if id in rows]
    if not completions:
        return "not known, the server's ledger has no completion of this run"
    drift = prefix_drift(completions)
    if drift.share is None:
        return "none, no completion continues another one"
    ways = Counter(str(completion.continuation) for completion in completions if completion.continuation)
    prompts = ", ".join(f"{count} {way}" for way, count in ways.items())
    return f"{drift.share:.1%}, {drift.missing} of {drift.sampled} sampled tokens; next prompts: {prompts}"
