"""`art-langgraph ledger archive`: earlier months of the ledger as Parquet files."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.console import Console

from trainer_server.cli.local import HomeOption, JsonOption, audited
from trainer_server.process.extras import require
from trainer_server.wire import ConfigError, Home

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
    from trainer_server.jobs.board import JobBoard
    from trainer_server.jobs.open_jobs import OpenJobs
    from trainer_server.ledger.archive import Archive, archive_months
    from trainer_server.ledger.registry import open_ledger
    from trainer_server.ledger.storage.months import GivesMonths, beginning, month_of

    paths = Home.find(home)
    if name == "sqlite" and not paths.ledger.exists():
        raise ConfigError(f"{paths.root} has no ledger.sqlite: name the home of a server with --home or ART_HOME")
    before = beginning(month_of(time.time()), later=-months)
    console, moved = Console(stderr=True), dict[str, int]()
    with audited(paths, "ledger.archive", f"{months} months stay"), console.status("archiving"):
        ledger, archive = open_ledger(name, paths), Archive(paths.archive)
        if not isinstance(ledger, GivesMonths):
            raise ConfigError(f"the ledger ({type(ledger).__name__}) gives no months to an archive (GivesMonths)")
        keep = OpenJobs(JobBoard(paths.jobs), ledger).completions()
        for month, count in archive_months(ledger, archive, before, keep=keep):
            moved[month] = count
            if not as_json:
                print(f"{month}: {count:,} completions in {archive.path(month)}")
        ledger.close()
    if as_json:
        print(json.dumps({"directory": str(paths.archive), "completions": moved}))
    elif not moved:
        print(f"the ledger has no completions from before {datetime.fromtimestamp(before, UTC):%Y-%m-%d}")
