"""`art-langgraph watch`: a running training as it goes on, with its learning curves."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from art_langgraph.cli.printing import json_text
from art_langgraph.cli.status import format_duration, job_line
from trainer_server.common.status import HELD_OUT, REWARD, Curve
from trainer_server.wire import Job, JobStatus
from trainer_server.wire.text import quantity, visible

if TYPE_CHECKING:
    from art_langgraph.cli.watching import Following


_SCREEN_CHANGES = 6
"""Changes on the screen."""
_TABLE_VERSIONS = 8
"""Versions in its table."""
_COLUMNS = {
    "held-out": HELD_OUT,
    "reward": REWARD,
    "reward of the step": "reward_mean",
    "loss": "loss",
    "entropy": "entropy",
    "gap to sampler": "logp_gap",
    "groups skipped": "groups_skipped",
}
"""Of the table: the title of a column, and the name of its curve."""


def watch_command(
    target: Annotated[
        str,
        typer.Argument(
            metavar="POLICY|RUN|JOB",
            help="A policy, a training run (`train --run NAME`), or the id of a job; its first characters suffice.",
        ),
    ],
    idle: Annotated[
        float,
        typer.Option(
            help="End when nothing has happened for so many seconds: no open job, nobody who asks for the policy. "
            "0: never.",
            min=0.0,
        ),
    ] = 120.0,
    every: Annotated[float, typer.Option(help="Seconds between two looks.", min=0.2)] = 1.0,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a line of JSON for each change, for programs.")
    ] = False,
) -> None:
    """Watch a training: its learning curve, the phases of its steps, what happens between them.

    A job is watched until it ends; a policy or a training run until nothing has happened for --idle seconds, as the
    server does not know how many steps there will be. Where the output is no terminal, each change is a line.

    Ends with status 1 if the last job that ended failed or was cancelled. Ctrl-C ends the watching, not the training.

    \b
    art-langgraph watch agent
    art-langgraph watch job-0198 | tee training.log
    """
    try:
        last = asyncio.run(_watch(target, idle, every, as_json))
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    if last is not None and last.status in (JobStatus.failed, JobStatus.cancelled):
        raise typer.Exit(1)


async def _watch(name: str, idle: float, every: float, as_json: bool) -> Job | None:
    """Watches until the end. Returns the job that ended last."""
    from art_langgraph.cli.watching import Following, find_target
    from art_langgraph.client.client import TrainerClient

    async with TrainerClient() as trainer:
        following = Following(trainer, await find_target(trainer, name))
        if as_json or not sys.stdout.isatty():
            async for changes in following.looks(idle=idle, every=every):
                for change in changes:
                    line = json_text(change.as_json(), sys.stdout) if as_json else visible(str(change))
                    print(line, flush=True)
            return following.last
        with Live(console=Console(emoji=False, highlight=False), auto_refresh=False, vertical_overflow="crop") as live:
            async for _ in following.looks(idle=idle, every=every):
                live.update(watch_screen(following), refresh=True)
        return following.last


def watch_screen(following: Following) -> RenderableType:
    """What the terminal shows.

    Args:
        following: After a look.
    """
    training, curves = following.training, following.curves
    parts: list[RenderableType] = [_headline(following)]
    parts += [job_line(job, training.last_look) for job in training.open]
    if not training.open:
        parts.append(Text(_between(following), style="dim"))
    names = [name for name in (HELD_OUT, REWARD) if name in curves] or ["reward_mean"]
    points = {name: list(zip(curves[name].x, curves[name].y, strict=True)) for name in names if name in curves}
    parts += ["", chart(points), ""]
    if (table := _versions(curves)) is not None:
        parts += [table, ""]
    parts += [Text(visible(str(change)), style="dim") for change in list(following.recent)[-_SCREEN_CHANGES:]]
    return Group(*parts)


def _headline(following: Following) -> Text:
    status = following.training.status
    text = Text(following.target.label, style="bold")
    if status is not None:
        version = status.newest if status.promoted is None else status.promoted
        text.append(f"  answers with @{version}, newest @{status.newest}", style="default")
    if steps := following.target.steps:
        text.append(f", {max(steps.values())} steps accepted", style="default")
    return text


def _between(following: Following) -> str:
    training = following.training
    if training.activity == "rollouts":
        return f"rollouts: {quantity(training.running, 'request')} under way, {training.tokens:,.1f} tokens/s"
    return f"no job is open, and nobody asks for the policy, for {format_duration(training.quiet)}"


def _versions(curves: Mapping[str, Curve]) -> Table | None:
    """The last versions with their figures; None: nothing is known."""
    columns = {
        title: dict(zip(curves[name].x, curves[name].y, strict=True))
        for title, name in _COLUMNS.items()
        if name in curves
    }
    numbers = sorted({version for values in columns.values() for version in values})[-_TABLE_VERSIONS:]
    if not numbers:
        return None
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("version", *columns):
        table.add_column(title, justify="right")
    for number in numbers:
        cells = [f"{values[number]:.3f}" if number in values else "" for values in columns.values()]
        table.add_row(f"@{number}", *cells)
    return table


Points = Sequence[tuple[float, float]]
"""(x, y), x rising."""
_STYLES = ("green", "magenta", "cyan", "yellow")
_MARKS = "●◆▲■"
_MARGIN = 11
"""Columns of the labels at the left."""


def chart(series: Mapping[str, Points], *, width: int = 60, height: int = 8) -> Text:
    """A chart of up to four series, with a legend that has their last values. Where points meet, the first series is in
    front.

    Args:
        series: Points by the name of the series; those without points are left out.
        width: Columns of the area, without the labels.
        height: Its rows.
    """
    curves = {name: points for name, points in series.items() if points}
    if not curves:
        return Text("no value yet", style="dim")
    text = Text()
    cells, labels = _area(list(curves.values()), width, height)
    for row in range(height):
        text.append(f"{labels.get(row, ''):>{_MARGIN - 2}} ┤", style="dim")
        for column in range(width):
            mark = cells.get((row, column))
            text.append(" " if mark is None else _MARKS[mark], style=None if mark is None else _STYLES[mark])
        text.append("\n")
    text.append(f"{'└':>{_MARGIN}}{'─' * width}\n", style="dim")
    xs = [x for points in curves.values() for x, _ in points]
    first, last = f"version {min(xs):g}", f"{max(xs):g}" if max(xs) > min(xs) else ""
    text.append(f"{'':{_MARGIN}}{first}{last:>{width - len(first)}}\n{'':{_MARGIN}}", style="dim")
    for number, (name, points) in enumerate(curves.items()):
        text.append(f"{_MARKS[number]} {name} {points[-1][1]:.3f}   ", style=_STYLES[number])
    return text


def _area(series: list[Points], width: int, height: int) -> tuple[dict[tuple[int, int], int], dict[int, str]]:
    """The number of the series at each (row, column), and the labels of rows."""
    xs = [x for points in series for x, _ in points]
    ys = [y for points in series for _, y in points]
    low, high, first, last = min(ys), max(ys), min(xs), max(xs)
    cells: dict[tuple[int, int], int] = {}
    for number, points in reversed(list(enumerate(series))):
        for x, y in points:
            column = round((x - first) / (last - first) * (width - 1)) if last > first else 0
            row = round((high - y) / (high - low) * (height - 1)) if high > low else height // 2
            cells[row, column] = number
    if high > low:
        return cells, {0: f"{high:.3f}", height - 1: f"{low:.3f}"}
    return cells, {height // 2: f"{high:.3f}"}
