"""`art-langgraph audit`: who did what at this server."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from trainer_server.cli.local import HomeOption, print_table
from trainer_server.common import Home
from trainer_server.server.access.audit import AuditLog
from trainer_server.wire.text import moment


def audit_command(
    since: Annotated[str | None, typer.Option(help="Only from then on: 30m, 2h, 7d, or a date.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON Lines, for programs.")] = False,
    home: HomeOption = None,
) -> None:
    """Print the audit log, oldest first: who did what, to what, when, and how it ended.

    It has what changes something (policies, steps, exports, promotions, deletions, tokens, logins), refused requests to
    do so, and requests without a token that counts. It has no text of prompts or answers, and no secrets.
    """
    from_time = None if since is None else moment(since)
    entries = AuditLog(Home.find(home)).entries(from_time, lambda wrong: print(f"left out: {wrong}", file=sys.stderr))
    if as_json:
        for entry in entries:
            print(entry.model_dump_json(exclude_none=True))
        return
    table = Table()
    for name in ("time", "who", "owner", "action", "target", "result", "from"):
        table.add_column(name, no_wrap=name != "target", overflow="fold")
    for entry in entries:
        result = entry.result if entry.status is None else f"{entry.result} ({entry.status})"
        when = entry.time.astimezone().strftime("%Y-%m-%d %H:%M:%S")
        names = escape(entry.who), escape(entry.owner or "")
        table.add_row(when, *names, entry.action, escape(entry.target), result, entry.address or "")
    print_table(table)
