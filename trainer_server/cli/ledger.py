"""`art-langgraph ledger archive | move`: earlier months of the ledger as Parquet files; the ledger in PostgreSQL."""

from __future__ import annotations

import fcntl
import json
import time
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from trainer_server.cli.local import HomeOption, JsonOption, audit_action
from trainer_server.common import Home
from trainer_server.process.cpu_torch import require
from trainer_server.wire import ConfigError

app = typer.Typer(help="The ledger of a server's home.", no_args_is_help=True)


@app.command("archive")
def archive_command(
    months: Annotated[
        int, typer.Option(help="Months that stay in the ledger, besides the current one.", min=0, max=1200)
    ] = 1,
    as_json: JsonOption = False,
    home: HomeOption = None,
    name: Annotated[
        str, typer.Option("--ledger", help="As `serve` has it: `sqlite`, or postgresql://….", envvar="ART_LEDGER")
    ] = "sqlite",
) -> None:
    """Move earlier months of the ledger to archive/YYYY-MM.parquet. The server may run, and go on answering.

    A month is written and read back before anything of it is deleted. What is archived can no longer be trained, and
    the dashboard and look-ups do not show it. Months are those of UTC. Needs pyarrow.

    Example: art-langgraph ledger archive --months 2
    """
    require("pyarrow", extra="parquet")
    from trainer_server.jobs.open_jobs import OpenJobs
    from trainer_server.jobs.queue import JobQueue
    from trainer_server.ledger.archive import Archive, archive_months
    from trainer_server.ledger.base import GivesMonths, beginning, month_of
    from trainer_server.ledger.registry import open_ledger

    paths = Home.find(home)
    if name == "sqlite" and not paths.ledger.exists():
        raise ConfigError(f"{paths.root} has no ledger.sqlite: name the home of a server with --home or ART_HOME")
    before = beginning(month_of(time.time()), later=-months)
    console, counts = Console(emoji=False, stderr=True), dict[str, int]()
    with audit_action(paths, "ledger.archive", f"{months} months stay"), console.status("archiving"):
        ledger, archive = open_ledger(name, paths), Archive(paths.archive)
        if not isinstance(ledger, GivesMonths):
            raise ConfigError(f"the ledger ({type(ledger).__name__}) gives no months to an archive (GivesMonths)")
        keep = OpenJobs(JobQueue(paths.jobs), ledger).completions()
        for month, count in archive_months(ledger, archive, before, keep=keep):
            counts[month] = count
            if not as_json:
                print(f"{month}: {count:,} completions in {archive.path(month)}")
        ledger.close()
    if as_json:
        print(json.dumps({"directory": str(paths.archive), "completions": counts}))
    elif not counts:
        print(f"the ledger has no completions from before {datetime.fromtimestamp(before, UTC):%Y-%m-%d}")


@app.command("move")
def move_command(
    to: Annotated[str, typer.Option("--to", help="The database, postgresql://USER@HOST/NAME.", envvar="ART_LEDGER")],
    home: Annotated[
        Path | None, typer.Option("--from", help="State directory of the server (ART_HOME, ~/.art-langgraph).")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Move the ledger of a home, with registrations, rewards and the list of runs, from SQLite to PostgreSQL.

    Stop the server first. A move that was broken off goes on where it was when it is started again. In the end all rows
    are read on both sides and compared. Then ledger.sqlite and rollouts.sqlite get the end `.moved`.

    Example: ART_LEDGER=postgresql://art:secret@db.example.com/art art-langgraph ledger move
    """
    from trainer_server.ledger.registry import is_address, ledger_factory, open_trainer_lock, postgres

    ledger_factory(to)  # says what is wrong with the address, or what is not installed
    if not is_address(to):
        raise ConfigError(f"--to {to}: name a database by its address, postgresql://USER@HOST:PORT/DATABASE")
    from trainer_server.process import faults
    from trainer_server.process.files import fsync_directory, server_id

    paths = Home.find(home)
    if not paths.root.is_dir():
        raise ConfigError(f"{paths.root} is no home of a server: name one with --from or ART_HOME")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    trainer_lock = open_trainer_lock(to, paths)
    assert trainer_lock is not None
    label = trainer_lock.label
    bar = Progress(*columns, console=Console(emoji=False, stderr=True), transient=True, disable=as_json)
    with (paths.root / "lock").open("a") as lock, audit_action(paths, "ledger.move", label):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError(f"a server is using {paths.root}: stop it first") from None
        try:
            if not trainer_lock.acquire():
                raise ConfigError(f"{label} is used by another server ({trainer_lock.holder()}): stop it first")
            with bar:
                task = bar.add_task("moving", total=None)

                def show_progress(table: str, rows_done: int, rows: int) -> None:
                    bar.update(task, description=table, completed=rows_done, total=rows)
                    if rows_done:
                        faults.point("moved")

                tables = postgres().move(paths, server_id(paths), to, show_progress)
            faults.point("compared")
            postgres().put_away(paths)
            fsync_directory(paths.root)
        finally:
            trainer_lock.release()
    if as_json:
        print(json.dumps({"database": label, "tables": {name: asdict(table) for name, table in tables.items()}}))
        return
    for name, table in tables.items():
        print(f"{name}: {table.rows:,} rows, {table.digest[:12]}… on both sides")
    print(f"moved to {label}: serve with ART_LEDGER or --ledger from now on. The files *.moved can be deleted")
