"""`art-langgraph trajectories …`: lists, shows, exports and imports recorded runs; what teaches nothing."""

from __future__ import annotations

import asyncio
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.progress import track

from art_langgraph.cli.options import (
    GraphFilter,
    JsonOption,
    RewardFilter,
    RunArgument,
    StoreOption,
    existing_store,
    search_trajectory,
    short_patience,
    unless_missing,
    why_empty,
)
from art_langgraph.cli.printing import print_json, print_table, shorten
from trainer_server.common.extensions import load
from trainer_server.common.options import with_flags
from trainer_server.wire import ConfigError
from trainer_server.wire.text import writable

if TYPE_CHECKING:
    from art_langgraph.client.client import TrainerClient
    from art_langgraph.store import TrajectoryStore
    from art_langgraph.trajectory import Trajectory
    from trainer_server.common.run_tree import Item
    from trainer_server.wire import Completion

TrainerFormat = Literal["trl", "openai-sft", "verifiers"]
"""The values of `art_langgraph.exports.TrainerFormat`, which this file must not import: it is an extension's."""

app = typer.Typer(help="Recorded runs: list, show, export, import, stats, dead-groups.", no_args_is_help=True)


@app.command("list")
@with_flags
def list_command(
    run_filter: Annotated[RewardFilter, None],
    limit: Annotated[int, typer.Option(help="How many, newest first.", min=1)] = 20,
    as_json: JsonOption = False,
    store: StoreOption = None,
) -> None:
    """List recorded runs, newest first: who answered, what was asked, and the reward.

    Example: art-langgraph trajectories list --graph agent --since 2h --no-error
    """
    from art_langgraph.cli.run_tree import facts

    query, target = run_filter.query(), existing_store(store)
    runs = target.list(limit=limit, **query)
    if as_json:
        print_json([facts(trajectory) for trajectory in runs])
        return
    if not runs:
        print(why_empty(target, query))
        return
    rows = [
        {
            **facts(trajectory),
            "time": datetime.fromtimestamp(trajectory.started).strftime("%m-%d %H:%M:%S"),
            "calls": f"{len(trajectory.completions)}+{len(trajectory.tool_calls)}",
        }
        for trajectory in runs
    ]
    for row in rows:
        row["question"], row["error"] = shorten(row["question"]), shorten(row["error"] or "")
    print_table(rows, ["id", "time", "graph", "versions", "question", "calls", "reward", "error"])
    print("calls: answers of models + calls of tools. `trajectories show ID` shows one run.")


@app.command("export")
@with_flags
def export_command(
    file: Annotated[Path, typer.Argument(help="File to write: .jsonl, or .parquet (needs pyarrow).")],
    run_filter: Annotated[RewardFilter, None],
    with_tokens: Annotated[
        bool,
        typer.Option(
            "--with-tokens",
            help="Write the ledger's rows too: the sampled tokens of each answer. `trajectories import` brings them to "
            "another server.",
        ),
    ] = False,
    format: Annotated[
        TrainerFormat | None,
        typer.Option(
            "--format",
            help="Write for another trainer: rows of answers for TRL, conversations for fine-tuning at OpenAI, or "
            "episodes for verifiers and prime-rl (name the file traces.jsonl).",
        ),
    ] = None,
    as_json: JsonOption = False,
    store: StoreOption = None,
) -> None:
    """Write runs to a file, oldest first: whole, with their tokens, or in the format of another trainer.

    \b
    art-langgraph trajectories export good.jsonl --min-reward 0.8
    art-langgraph trajectories export all.jsonl --with-tokens
    art-langgraph trajectories export rows.jsonl --format trl

    Tokens, and the tools that an answer could call, are known to the trainer server alone (ART_BASE_URL; completions
    are kept for 30 days). A file with tokens goes to another server with the same base model: set ART_BASE_URL to it
    and run `art-langgraph trajectories import FILE` there.
    """
    from trainer_server.common.jsonl import write_jsonl

    if file.suffix not in (".jsonl", ".parquet"):
        raise ConfigError(f"{file}: the name must end in .jsonl or .parquet")
    if file.suffix == ".parquet" and (with_tokens or format):
        raise ConfigError(f"{file}: --with-tokens and --format write .jsonl")
    query, target = run_filter.query(), existing_store(store)
    runs = target.list(**query)[::-1]
    if not runs:
        print(why_empty(target, query), file=sys.stderr)
    progress = track(runs, "exporting", disable=not sys.stderr.isatty())
    if with_tokens or format:
        _write_with_rows(file, progress, with_tokens, format, as_json=as_json)
        return
    with _writing(file):
        if file.suffix == ".parquet":
            _write_parquet(file, runs)
        else:
            write_jsonl(file, progress)
    if as_json:
        print_json({"file": str(file), "trajectories": len(runs)})
    else:
        print(f"{len(runs)} trajectories in {file}")


def _write_with_rows(
    file: Path, runs: Iterable[Trajectory], with_tokens: bool, format: TrainerFormat | None, *, as_json: bool
) -> None:
    """Writes runs with what the trainer server knows of their answers."""
    exports = load("art_langgraph.exports.export")
    export = exports.Export(format and exports.TrainerFormat(format), tokens=with_tokens)
    with _writing(file):
        export.write(file, runs)
    for note in export.notes:
        print(note, file=sys.stderr)
    if as_json:
        print_json({"file": str(file), "summary": str(export.summary), "notes": list(export.notes)})
    else:
        print(f"{export.summary} in {file}")


@app.command("import")
def import_command(
    file: Annotated[Path, typer.Argument(help="File that `export` wrote: .jsonl or .parquet.")],
    store: StoreOption = None,
    tokens: Annotated[
        bool,
        typer.Option(
            "--tokens/--no-tokens",
            help="Bring the tokens in the file to the trainer server (ART_BASE_URL). A file without tokens needs none.",
        ),
    ] = True,
    as_json: JsonOption = False,
) -> None:
    """Read runs from a file into the store. A run that is in the store already is left alone.

    Tokens in the file (`export --with-tokens`) go to the trainer server, which takes those of its own base model and
    tokenizer and overwrites none. Warm starts can imitate them there; steps of GRPO leave them out (`other_server`).
    """
    from art_langgraph.store import TrajectoryStore
    from trainer_server.common.jsonl import read_jsonl

    ledger_rows = load("art_langgraph.exports.ledger_rows")
    target = TrajectoryStore(store)
    count = known_count = new_rows = known_rows = 0
    lines: Iterable[tuple[Trajectory, list[Completion]]]
    if file.suffix == ".parquet":
        lines = ((run, []) for run in _read_parquet(file))
    else:
        lines = read_jsonl(file, ledger_rows.run_and_rows, what="trajectory")
    with ExitStack() as stack:
        server: Any = None
        for trajectory, rows in lines:
            if rows and tokens:
                if server is None:
                    server = stack.enter_context(ledger_rows.LedgerRows(short_patience()))
                outcome = server.add(rows)
                new_rows, known_rows = new_rows + outcome.added, known_rows + outcome.known
            if trajectory.id in target.rewards([trajectory.id]):  # `get` would find one that has only begun, too
                known_count += 1
            else:
                target.add(trajectory)
                count += 1
        if as_json:
            tokens_of = {"server": server and server.url, "added": new_rows, "known": known_rows}
            print_json({"added": count, "known": known_count, "tokens": tokens_of})
            return
        print(f"{count} added, {known_count} were there already")
        if server is not None:
            print(f"tokens of {new_rows} completions brought to {server.url}, of {known_rows} were there already")


@app.command("stats")
@with_flags
def stats_command(
    run_filter: Annotated[RewardFilter, None],
    as_json: JsonOption = False,
    store: StoreOption = None,
) -> None:
    """Count runs, errors, rewards and calls, by graph."""
    by_graph: dict[str, list[Trajectory]] = {}
    query, target = run_filter.query(), existing_store(store)
    for trajectory in target.list(**query):
        by_graph.setdefault(trajectory.graph_id or "", []).append(trajectory)
    rows = [{"graph": name, **_statistics(runs)} for name, runs in by_graph.items()]
    if as_json:
        print_json(rows)
        return
    if not rows:
        print(why_empty(target, query))
        return
    columns = ["graph", "runs", "errors", "scored", "mean reward", "completions", "tool calls", "median s", "versions"]
    print_table(rows, columns, whole=["graph"])
    if cut_off := len(target.unfinished()):
        print(f"{cut_off} runs have begun and not ended: under way, or cut off")


@app.command("dead-groups")
@with_flags
def dead_groups_command(
    run_filter: Annotated[GraphFilter, None],
    policy: Annotated[str, typer.Option(help="Policy whose training is looked at.")] = "agent",
    as_json: JsonOption = False,
    store: StoreOption = None,
) -> None:
    """Report the scenarios that never taught a policy anything: why, and what to do.

    A group is the runs of a scenario that one version sampled. It teaches nothing where all of them got the same
    reward. Runs that evaluate a version are not looked at.

    Example: art-langgraph trajectories dead-groups --policy agent --since 1d
    """
    from art_langgraph.loop.sampling.dead_groups import dead_groups, groups_by_version

    target = existing_store(store)
    groups = groups_by_version(target.list(**run_filter.query()), policy)
    if not groups:
        raise ConfigError(
            f"{target.name} has no run of {policy!r} that could be trained: name another policy with --policy, or give "
            "train() a store"
        )
    report = dead_groups(groups)
    if as_json:
        print_json(report.summary())
    else:
        print(report)


def _statistics(runs: Sequence[Trajectory]) -> dict[str, Any]:
    from art_langgraph.cli.run_tree import answered_by

    rewards = [trajectory.reward for trajectory in runs if trajectory.reward is not None]
    versions = Counter(version for trajectory in runs for version in answered_by(trajectory))
    return {
        "runs": len(runs),
        "errors": sum(trajectory.error is not None for trajectory in runs),
        "scored": len(rewards),
        "mean reward": statistics.fmean(rewards) if rewards else None,
        "completions": sum(len(trajectory.completions) for trajectory in runs),
        "tool calls": sum(len(trajectory.tool_calls) for trajectory in runs),
        "median s": statistics.median(trajectory.seconds for trajectory in runs),
        "versions": [version for version, _ in versions.most_common(3)],
    }


@contextmanager
def _writing(file: Path) -> Iterator[None]:
    """Raises ConfigError where the file cannot be written, as on a full disk."""
    try:
        yield
    except OSError as error:
        raise ConfigError(f"{file} cannot be written: {error.strerror or error}") from None


def _write_parquet(file: Path, runs: Sequence[Trajectory]) -> None:
    from trainer_server.common.home import create_private
    from trainer_server.common.jsonl import to_json

    arrow, parquet = _pyarrow()
    text, real, whole = arrow.string(), arrow.float64(), arrow.int64()
    columns: dict[str, tuple[Any, Callable[[Trajectory], Any]]] = {
        "id": (text, lambda run: _utf8(run.id)),
        "started": (real, lambda run: run.started),
        "seconds": (real, lambda run: run.seconds),
        "graph": (text, lambda run: _utf8(run.graph_id)),
        "thread": (text, lambda run: _utf8(run.thread_id)),
        "run": (text, lambda run: _utf8(run.run_id)),
        "scenario": (text, lambda run: _utf8(run.scenario.id)),
        "reward": (real, lambda run: run.reward),
        "error": (text, lambda run: _utf8(run.error)),
        "completions": (whole, lambda run: len(run.completions)),
        "tool_calls": (whole, lambda run: len(run.tool_calls)),
        "record": (text, to_json),
    }
    schema = arrow.schema([(name, kind) for name, (kind, _) in columns.items()])
    rows = [{name: value(run) for name, (_, value) in columns.items()} for run in runs]
    create_private(file)
    parquet.write_table(arrow.Table.from_pylist(rows, schema=schema), file)


def _utf8(text: str | None) -> str | None:
    """A text as Parquet can hold it. The column `record` has the exact text, as JSON."""
    return None if text is None else writable(text)


def _read_parquet(file: Path) -> Iterator[Trajectory]:
    from art_langgraph.trajectory import Trajectory
    from trainer_server.common.jsonl import explain, from_json

    records = load("art_langgraph.traces.records")
    for number, row in records.read_records(file, records.Skips()):
        try:
            yield from_json(Trajectory, row["record"])
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"{file}, row {number} is no trajectory: {explain(error)}") from None


def _pyarrow() -> tuple[Any, Any]:
    try:
        return import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError:
        raise ConfigError("Parquet needs pyarrow: pip install 'art-langgraph[parquet]'") from None


_MESSAGE_CHARACTERS = 800
"""Characters of a message, without --full."""


@app.command("show")
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
    from art_langgraph.cli.run_tree import as_json as tree_json
    from art_langgraph.cli.run_tree import facts, tree
    from art_langgraph.cli.run_tree import messages as lines

    trajectory, rows, drift = asyncio.run(_read_run(existing_store(store), run))
    items = _run_items(trajectory, rows)
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
    console = Console(emoji=False, highlight=False)
    console.print(tree(trajectory, items, drift=drift))
    if messages:
        for line in lines(items, most=None if full else _MESSAGE_CHARACTERS):
            console.print(line, soft_wrap=not console.is_terminal)


def _run_items(trajectory: Trajectory, rows: dict[str, Completion]) -> list[Item]:
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
            if trajectory is not None and (ids := _completion_ids(trajectory)):
                rows = await trainer.completions(ids)
    except (ConfigError, ServerError, ServerUnreachable) as error:
        why, unknown = str(error), f"not known, the server has the tokens: {error}"
    if trajectory is None:
        raise ConfigError(
            f"{store.name} has no run {run!r}; `art-langgraph trajectories list` shows what it has. The trainer "
            f"server: {why}"
        )
    several = len(_completion_ids(trajectory)) > 1
    return trajectory, rows, (unknown or _drift_text(_completion_ids(trajectory), rows)) if several else None


def _completion_ids(trajectory: Trajectory) -> list[str]:
    return [call.id for call in trajectory.completions if call.id]


async def _of_server(trainer: TrainerClient, run: str) -> Trajectory | None:
    """A run as its client reported it, else as the ledger has it; None: the server knows nothing of it."""
    from art_langgraph.trajectory import Trajectory

    if (trace := await unless_missing(trainer.trace(run))) is not None:
        return Trajectory.model_validate(trace.model_dump(mode="json", exclude={"left_out"}))
    return await unless_missing(trainer.rollout(run))


def _drift_text(ids: list[str], rows: dict[str, Completion]) -> str:
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
