"""`art-langgraph trajectories delete | threads delete | policies delete`: runs and policies, with all that is left of
them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from art_langgraph.cli import policies, trajectories
from art_langgraph.cli.options import (
    JsonOption,
    StoreOption,
    ask_server,
    existing_store,
    find_trajectory,
    unless_missing,
)
from art_langgraph.cli.printing import only_json
from trainer_server.wire import ConfigError, Erased, ServerError, ServerUnreachable

if TYPE_CHECKING:
    from art_langgraph.store import TrajectoryStore
    from art_langgraph.trajectory import Trajectory

threads_app = typer.Typer(
    help="Threads of LangGraph, as far as their runs were recorded: delete.", no_args_is_help=True
)

_YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask whether to delete.")]
_LocalOption = Annotated[
    bool,
    typer.Option(
        "--local", help="Only in the store on this machine. What the trainer server has of the runs stays there."
    ),
]


@trajectories.app.command("delete")
def delete_trajectories_command(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="ID...",
            help="Ids of trajectories, of LangGraph's runs, or of rollouts that only the trainer server has.",
        ),
    ],
    yes: _YesOption = False,
    local: _LocalOption = False,
    as_json: JsonOption = False,
    store: StoreOption = None,
) -> None:
    """Delete runs: in the store here, and at the trainer server with requests, answers, tokens, rewards and traces.

    Weights that were trained on a run stay, and so do backups and files that were exported. The server's part needs a
    token of scope admin.

    Example: art-langgraph trajectories delete tr-4f2a
    """
    from art_langgraph.store import TrajectoryStore

    target = TrajectoryStore(store)
    parts: list[Trajectory] = []
    elsewhere: list[str] = []
    for run in runs:
        try:
            parts += target.parts(find_trajectory(target, run).id)
        except ConfigError:
            of_rollout = [part for own in target if own.rollout_id == run for part in target.parts(own.id)]
            if of_rollout:
                parts += of_rollout
            elif not local and _is_rollout(run):
                elsewhere.append(run)
            else:
                raise
    with only_json(as_json) as answer:
        answer(_delete(target, parts, elsewhere, what=", ".join(runs), yes=yes, local=local))


@trajectories.app.command("prune")
def prune_command(
    keep_days: Annotated[
        float | None, typer.Option(help="Delete runs that began longer ago.", min=0, show_default=False)
    ] = None,
    keep_gib: Annotated[
        float | None,
        typer.Option(
            help="Delete the oldest runs until the records of all runs take no more, GiB.", min=0, show_default=False
        ),
    ] = None,
    yes: _YesOption = False,
    as_json: JsonOption = False,
    store: StoreOption = None,
) -> None:
    """Delete old runs of the store on this machine. The trainer server has its own retention (`serve --keep-days`).

    Nothing does this by itself. Example, for a daily cron job: art-langgraph trajectories prune --keep-days 90 --yes
    """
    if keep_days is None and keep_gib is None:
        raise ConfigError("trajectories prune: give --keep-days, --keep-gib, or both")
    if math.inf in (keep_days, keep_gib):
        raise ConfigError(f"--keep-days {keep_days}, --keep-gib {keep_gib}: a number must be finite")
    target = existing_store(store)
    with only_json(as_json) as answer:
        _confirm(f"old runs in {target.name}", yes)
        count = target.prune(days=keep_days, most_bytes=None if keep_gib is None else int(keep_gib * 2**30))
        print(f"{count} runs deleted in {target.name}")
        answer({"store": target.name, "runs": count})


@threads_app.command("delete")
def delete_thread_command(
    thread: Annotated[str, typer.Argument(help="Id of the thread.")],
    yes: _YesOption = False,
    local: _LocalOption = False,
    as_json: JsonOption = False,
    store: StoreOption = None,
) -> None:
    """Delete all recorded runs of a thread, as `trajectories delete` does.

    The thread's checkpoints are LangGraph's: delete them there (`client.threads.delete`, or the checkpointer's
    `delete_thread`).
    """
    target = existing_store(store)
    ids = [run.id for run in (*target.list(thread=thread), *target.unfinished()) if run.thread_id == thread]
    if not ids:
        raise ConfigError(f"{target.name} has no run of the thread {thread!r}")
    parts = [part for run_id in ids for part in target.parts(run_id)]
    with only_json(as_json) as answer:
        answer(_delete(target, parts, [], what=f"{len(ids)} runs of the thread {thread}", yes=yes, local=local))


@policies.app.command("delete")
def delete_policy_command(
    name: Annotated[str, typer.Argument(help="The policy.")],
    yes: _YesOption = False,
    as_json: JsonOption = False,
    store: StoreOption = None,
) -> None:
    """Delete a policy: its versions, its jobs, and all runs in which it answered, here and at the trainer server.

    Its name cannot be used again at this server. Forks of it stay. Needs a token of scope admin.

    Example: art-langgraph policies delete agent-old
    """
    target = existing_store(store)
    with only_json(as_json) as answer:
        if not yes:  # before the question: there is nothing to confirm where there is no such policy
            ask_server(lambda trainer: trainer.policy(name))
        _confirm(f"the policy {name} with all its versions, jobs and runs", yes)
        erasure = ask_server(lambda trainer: trainer.delete_policy(name))
        count = target.delete([run.id for run in target if name in run.versions])
        print(f"{name}: {erasure.versions} versions deleted, and {count} runs in {target.name}")
        _print_counts(erasure)
        answer({"policy": name, "store": target.name, "runs": count, "server": erasure.model_dump()})


def _delete(
    store: TrajectoryStore, runs: Sequence[Trajectory], elsewhere: Sequence[str], *, what: str, yes: bool, local: bool
) -> dict[str, Any]:
    """Deletes runs: first at the server, so that the store still knows what to ask for if that fails. Returns what was
    deleted, as JSON."""
    _confirm(what, yes)
    erasure = None
    if not local:
        rollouts = [*dict.fromkeys(run.rollout_id for run in runs if run.rollout_id), *elsewhere]
        completions = list(dict.fromkeys(call.id for run in runs for call in run.completions if call.id))
        if rollouts or completions:
            erasure = _delete_at_server(rollouts, completions)
            _print_counts(erasure)
    count = store.delete([run.id for run in runs])
    print(f"{count} runs deleted in {store.name}")
    return {"store": store.name, "runs": count, "server": erasure and erasure.model_dump()}


def _delete_at_server(rollouts: Sequence[str], completions: Sequence[str]) -> Erased:
    try:
        return ask_server(lambda trainer: trainer.erase(rollouts, completions))
    except (ServerUnreachable, ServerError) as error:
        raise ConfigError(
            f"nothing was deleted, because the trainer server deletes its part first: {error}. --local deletes the "
            "runs in the store here alone"
        ) from None


def _is_rollout(run: str) -> bool:
    """Whether the trainer server has a rollout with this id."""
    return ask_server(lambda trainer: unless_missing(trainer.rollout(run))) is not None


def _confirm(what: str, yes: bool) -> None:
    if not yes:
        typer.confirm(f"Delete {what}? This cannot be undone.", abort=True)


def _print_counts(erasure: Erased) -> None:
    print(
        f"the trainer server deleted {erasure.rollouts} rollouts, {erasure.completions} completions and the files of "
        f"{erasure.jobs} jobs that used them"
    )
    if not erasure.rewritten:
        print("its databases are larger than 1 GiB and were not written anew: what was deleted is overwritten in them")
