"""`art-langgraph trajectories …`, `feedback`, `score`: what was recorded, and how good it was."""

from __future__ import annotations

import asyncio
import importlib
import json
import statistics
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import track
from rich.table import Table
from rich.tree import Tree

from art_langgraph.cli.judge import JudgeOption, RubricOption, UrlOption, VotesOption, judge_runs, made_ruler
from art_langgraph.jsonl import explain, read_jsonl, to_line, write_jsonl
from art_langgraph.rewards import score
from art_langgraph.store import TrajectoryStore
from art_langgraph.trajectory import CompletionCall, ToolCall, Trajectory
from trainer_server.wire import ConfigError

StoreOption = Annotated[Path | None, typer.Option("--store", help="Store file; default: under ART_HOME.")]
GraphOption = Annotated[str | None, typer.Option("--graph", help="Only runs of this graph.")]
ThreadOption = Annotated[str | None, typer.Option("--thread", help="Only runs on this thread.")]
SinceOption = Annotated[str | None, typer.Option("--since", help="Only runs from then on: 30m, 2h, 7d, or a date.")]
MinOption = Annotated[float | None, typer.Option("--min-reward", help="Only runs with at least this reward.")]
MaxOption = Annotated[float | None, typer.Option("--max-reward", help="Only runs with at most this reward.")]
ErrorOption = Annotated[
    bool | None, typer.Option("--error/--no-error", help="Only runs that raised, or only runs that did not.")
]

app = typer.Typer(help="Recorded runs: list, show, export, import, stats.", no_args_is_help=True)


@app.command("list")
def list_command(
    limit: Annotated[int, typer.Option(help="How many, newest first.", min=1)] = 20,
    store: StoreOption = None,
    graph: GraphOption = None,
    thread: ThreadOption = None,
    since: SinceOption = None,
    min_reward: MinOption = None,
    max_reward: MaxOption = None,
    error: ErrorOption = None,
) -> None:
    """List recorded runs, newest first."""
    table = Table("id", "time", "graph", "scenario", "nodes", "completions", "tool calls", "reward", "error")
    chosen = filters(graph, thread, since, min_reward, max_reward, error)
    for one in TrajectoryStore(store).list(limit=limit, **chosen):
        counts = [str(len(part)) for part in (one.nodes, one.completions, one.tool_calls)]
        when = datetime.fromtimestamp(one.started).strftime("%m-%d %H:%M:%S")
        cells = [one.id, when, one.graph_id or "", one.scenario.id, *counts, number(one.reward), (one.error or "")[:60]]
        table.add_row(*map(escape, cells))
    Console().print(table)


@app.command("show")
def show_command(
    run: Annotated[str, typer.Argument(help="Id of a trajectory, or of a run.")], store: StoreOption = None
) -> None:
    """Show one run as a tree: nodes, messages, tools, rewards."""
    Console().print(tree(find(TrajectoryStore(store), run)))


@app.command("export")
def export_command(
    file: Annotated[Path, typer.Argument(help="Where to write: .jsonl, or .parquet (needs pyarrow).")],
    store: StoreOption = None,
    graph: GraphOption = None,
    thread: ThreadOption = None,
    since: SinceOption = None,
    min_reward: MinOption = None,
    max_reward: MaxOption = None,
    error: ErrorOption = None,
) -> None:
    """Write runs to a file, oldest first."""
    found = TrajectoryStore(store).list(**filters(graph, thread, since, min_reward, max_reward, error))[::-1]
    if file.suffix == ".parquet":
        _write_parquet(file, found)
    elif file.suffix == ".jsonl":
        write_jsonl(file, track(found, "exporting", disable=not sys.stderr.isatty()))
    else:
        raise ConfigError(f"{file}: the name must end in .jsonl or .parquet")
    print(f"{len(found)} trajectories in {file}")


@app.command("import")
def import_command(
    file: Annotated[Path, typer.Argument(help="What `export` wrote: .jsonl or .parquet.")], store: StoreOption = None
) -> None:
    """Read runs from a file into the store; those that are there already are left alone."""
    target = TrajectoryStore(store)
    runs = _read_parquet(file) if file.suffix == ".parquet" else read_jsonl(file, _trajectory, what="trajectory")
    added = known = 0
    for one in runs:
        if target.get(one.id) is None:
            target.add(one)
            added += 1
        else:
            known += 1
    print(f"{added} added, {known} were there already")


@app.command("stats")
def stats_command(
    store: StoreOption = None,
    graph: GraphOption = None,
    thread: ThreadOption = None,
    since: SinceOption = None,
    min_reward: MinOption = None,
    max_reward: MaxOption = None,
    error: ErrorOption = None,
) -> None:
    """Sums over runs, by graph."""
    by_graph: dict[str, list[Trajectory]] = {}
    target = TrajectoryStore(store)
    for one in target.list(**filters(graph, thread, since, min_reward, max_reward, error)):
        by_graph.setdefault(one.graph_id or "", []).append(one)
    table = Table("graph", "runs", "errors", "scored", "mean reward", "completions", "tool calls", "median s", "models")
    for name, runs in by_graph.items():
        rewards = [one.reward for one in runs if one.reward is not None]
        models = Counter(call.model or "?" for one in runs for call in one.completions)
        table.add_row(
            escape(name), str(len(runs)), str(sum(one.error is not None for one in runs)), str(len(rewards)),
            number(statistics.fmean(rewards) if rewards else None), str(sum(len(one.completions) for one in runs)),
            str(sum(len(one.tool_calls) for one in runs)), f"{statistics.median(one.seconds for one in runs):.2f}",
            escape(", ".join(model for model, _ in models.most_common(3))),
        )  # fmt: skip
    Console().print(table)
    if cut := len(target.unfinished()):
        print(f"{cut} runs have begun and not ended: under way, or cut off")


def feedback_command(
    run: Annotated[str, typer.Argument(help="Id of a trajectory, or the run id that LangGraph gave it.")],
    value: Annotated[float, typer.Option("--score", help="The reward.")],
    store: StoreOption = None,
) -> None:
    """Give one recorded run a reward."""
    target = TrajectoryStore(store)
    one = find(target, run)
    target.score(one.id, value)
    print(f"{one.id}: reward {value:g}")


def score_command(
    reward: Annotated[str | None, typer.Option(help="Reward function, as module:function.")] = None,
    judge: JudgeOption = None,
    judge_url: UrlOption = None,
    rubric: RubricOption = None,
    votes: VotesOption = 1,
    again: Annotated[bool, typer.Option("--again", help="Also runs that have a reward.")] = False,
    store: StoreOption = None,
    graph: GraphOption = None,
    thread: ThreadOption = None,
    since: SinceOption = None,
    error: ErrorOption = None,
) -> None:
    """Score recorded runs with a reward function, or let a judge compare the runs of each scenario.

    A run that cannot be scored gets no reward, and is counted.
    """
    target = TrajectoryStore(store)
    runs = [
        one for one in target.list(**filters(graph, thread, since, None, None, error)) if one.reward is None or again
    ]
    if (reward is None) == (judge is None):
        raise ConfigError("say either --reward module:function or --judge provider/name")
    if judge is not None:
        judged = asyncio.run(judge_runs(target, runs, made_ruler(judge, judge_url, rubric, votes), judge))
        count = sum(one.reward is not None for one in judged)
        print(f"{count} scored, {len(judged) - count} failed")
        return
    assert reward is not None
    function = imported(reward)
    scored = failed = 0
    for one in runs:
        asyncio.run(score(one, function))
        target.score(one.id, one.reward, one.metrics, error=one.reward_error, source=reward)
        scored, failed = scored + (one.reward is not None), failed + (one.reward is None)
        if one.reward_error:
            print(f"{one.id}: {one.reward_error}", file=sys.stderr)
    print(f"{scored} scored, {failed} failed")


def filters(
    graph: str | None, thread: str | None, since: str | None, min_reward: float | None, max_reward: float | None,
    error: bool | None,
) -> dict[str, Any]:  # fmt: skip
    """Options of the command line → arguments of `TrajectoryStore.list`. Raises ConfigError."""
    return {
        "graph": graph, "thread": thread, "since": None if since is None else moment(since),
        "min_reward": min_reward, "max_reward": max_reward, "error": error,
    }  # fmt: skip


def moment(text: str) -> float:
    """`30m`, `2h`, `7d` ago, or an ISO date → Unix time. Raises ConfigError."""
    units = {"m": "minutes", "h": "hours", "d": "days"}
    try:
        if text[-1:] in units:
            return (datetime.now() - timedelta(**{units[text[-1]]: float(text[:-1])})).timestamp()
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        raise ConfigError(f"--since {text}: expected 30m, 2h, 7d, or a date such as 2026-01-31") from None


def imported(name: str) -> Any:
    """What `module:attribute` names; the current directory is searched too. Raises ConfigError."""
    module, colon, attribute = name.partition(":")
    if not colon:
        raise ConfigError(f"{name}: expected module:attribute")
    sys.path.insert(0, "")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{name} cannot be imported: {error}") from None


def find(store: TrajectoryStore, run: str) -> Trajectory:
    """A run by either of its ids. Raises ConfigError."""
    found = store.find(run)
    if found is None:
        raise ConfigError(f"{store.path} has no run {run!r}; `art-langgraph trajectories list` shows what it has")
    return found


def number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def tree(one: Trajectory) -> Tree:
    """A run for people to read: calls under the runs of nodes that made them, in order of time."""
    facts = [f"reward {number(one.reward)}" if one.reward is not None else "no reward", f"{one.seconds:.2f} s"]
    facts += [one.reward_error or "", one.error or ""]
    root = Tree(f"[bold]{escape(one.id)}[/bold] {escape(one.graph_id or '')} {escape(' · '.join(filter(None, facts)))}")
    if one.metrics:
        root.add(escape(" · ".join(f"{name} {value:.3f}" for name, value in one.metrics.items())))
    branches: dict[str | None, Tree] = {None: root}
    events: list[Any] = sorted([*one.nodes, *one.completions, *one.tool_calls], key=lambda event: event.started)
    for event in events:
        if isinstance(event, CompletionCall):
            _show_completion(branches.get(event.attempt, root), event)
        elif isinstance(event, ToolCall):
            mark = "[red]✗[/red]" if event.is_error else "[green]✓[/green]"
            where = f" ({event.server})" if event.server else ""
            text = f"{event.tool}({json.dumps(event.arguments, ensure_ascii=False)}){where} → {event.result or ''}"
            branches.get(event.attempt, root).add(f"{mark} {escape(text[:400])}")
        else:
            ends = " [red]" + escape(event.error) + "[/red]" if event.error else ""
            ends += " [yellow]interrupted[/yellow]" if event.interrupted else ""
            branch = "" if event.branch is None else f" #{event.branch}"
            label = f"[cyan]{escape(event.node or '')}{branch}[/cyan] {event.seconds:.2f} s{ends}"
            branches[event.attempt] = branches.get(event.parent, root).add(label)
    return root


def _show_completion(branch: Tree, call: CompletionCall) -> None:
    notes = [call.model or "", call.id or "not ours", f"superseded by {call.superseded}" if call.superseded else ""]
    notes += ["cached" if call.cached else "", number(call.reward), call.error or ""]
    node = branch.add(f"[magenta]●[/magenta] [dim]{escape(' · '.join(filter(None, notes)))}[/dim]")
    for message in call.messages[-2:]:
        line = f"{message.get('role')}: {_text(message)}"
        node.add(f"[dim]{escape(line[:400])}[/dim]")
    if call.message:
        node.add(escape(f"assistant: {_text(call.message)}"[:800]))


def _text(message: dict[str, Any]) -> str:
    content = message.get("content")
    words = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False) if content else ""
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    return " ".join([words, *(f"{call['name']}({call['arguments']})" for call in calls)]).strip()


def _write_parquet(file: Path, found: Sequence[Trajectory]) -> None:
    arrow, parquet = _pyarrow()
    rows = [
        {
            "id": one.id, "started": one.started, "seconds": one.seconds, "graph": one.graph_id,
            "thread": one.thread_id, "run": one.run_id, "scenario": one.scenario.id, "reward": one.reward,
            "error": one.error, "completions": len(one.completions), "tool_calls": len(one.tool_calls),
            "record": to_line(one),
        }
        for one in found
    ]  # fmt: skip
    text, real, whole = arrow.string(), arrow.float64(), arrow.int64()
    kinds = {"started": real, "seconds": real, "reward": real, "completions": whole, "tool_calls": whole}
    names = ("id", "started", "seconds", "graph", "thread", "run", "scenario", "reward", "error", "completions",
             "tool_calls", "record")  # fmt: skip
    schema = arrow.schema([(name, kinds.get(name, text)) for name in names])
    parquet.write_table(arrow.Table.from_pylist(rows, schema=schema), file)


def _read_parquet(file: Path) -> Iterator[Trajectory]:
    _, parquet = _pyarrow()
    for number, record in enumerate(parquet.read_table(file, columns=["record"])["record"].to_pylist(), start=1):
        try:
            yield _trajectory(json.loads(record))
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{file}, row {number} is no trajectory: {explain(error)}") from None


def _trajectory(value: Any) -> Trajectory:
    return Trajectory.model_validate(value)


def _pyarrow() -> tuple[Any, Any]:
    try:
        return importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise ConfigError("Parquet needs pyarrow: pip install 'art-langgraph[parquet]'") from None


def register(root: typer.Typer) -> None:
    """Adds these commands to `art-langgraph`."""
    root.add_typer(app, name="trajectories")
    root.command("feedback")(feedback_command)
    root.command("score")(score_command)
