"""`art-langgraph tokens create | list | revoke`, and `audit`: who may do what at this server, and who did."""

from __future__ import annotations

import json
import sys
import time
from datetime import datetime
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from trainer_server.cli.local import HomeOption, JsonOption, audit_action, existing_home, open_home, print_table
from trainer_server.server.access.audit import AuditLog
from trainer_server.server.access.tokens import Scope, Token, TokenRepository
from trainer_server.wire import ConfigError
from trainer_server.wire.text import duration, moment

app = typer.Typer(
    help="Named tokens: who may ask this server for what. The server may run meanwhile.", no_args_is_help=True
)

_NameArgument = Annotated[str, typer.Argument(help="Of the user, a person or a program. The audit log has it.")]


@app.command("create")
def create_command(
    name: _NameArgument,
    scope: Annotated[
        Scope,
        typer.Option(
            help="rollout: answers, and runs by their id. train: also policies, steps, exports, the dashboard with all "
            "runs. admin: also promotion, deletion. engine: adapters, for an engine on another machine."
        ),
    ],
    owner: Annotated[
        str | None,
        typer.Option(
            help="The person or team that answers for it. The audit log and traces name it, and the limits of its "
            "tokens count what all of them ask for."
        ),
    ] = None,
    expires: Annotated[
        str | None, typer.Option(help="How long it counts: 30m, 12h, 30d, 2w. Default: until it is revoked.")
    ] = None,
    requests_in_flight: Annotated[
        int | None, typer.Option(help="Model requests at once; one more gets 429. Default: any number.", min=1)
    ] = None,
    tokens_per_minute: Annotated[
        int | None,
        typer.Option(help="Tokens of prompts and answers in a minute; then 429. Default: any number.", min=1),
    ] = None,
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """Create a token and print it. It is printed this once: the server keeps its hash only.

    Example: art-langgraph tokens create alice-laptop --owner alice --scope rollout --expires 30d
    """
    paths = open_home(home)
    seconds = None if expires is None else duration(expires, "--expires")
    if seconds == 0:
        raise ConfigError(f"--expires {expires}: the token would never count; name a duration such as 12h, 30d or 2w")
    whose = f" of {owner}" if owner else ""
    with audit_action(paths, "token.create", f"{name}{whose}, scope {scope}"):
        secret = TokenRepository(paths).create(
            name,
            scope,
            owner=owner,
            seconds=seconds,
            requests_in_flight=requests_in_flight,
            tokens_per_minute=tokens_per_minute,
        )
    print(json.dumps({"name": name, "owner": owner, "scope": scope, "token": secret}) if as_json else secret)
    Console(emoji=False, stderr=True).print(
        f"the token of {name}, scope {scope}: give it as ART_API_KEY, or as the API key of a client. It is not shown "
        "again"
    )


@app.command("list")
def list_command(as_json: JsonOption = False, home: HomeOption = None) -> None:
    """List the named tokens: owner, scope, creation, last use (to half a minute), expiry, limits."""
    book = TokenRepository(existing_home(home))
    tokens, last_uses = book.all(), book.last_used()
    if as_json:
        rows = [
            {**token.model_dump(mode="json", exclude={"digest"}), "last_used": last_uses.get(token.digest)}
            for token in tokens
        ]
        print(json.dumps(rows, indent=2))
        return
    table = Table("name", "owner", "scope", "created", "last use", "expires", "requests in flight", "tokens a minute")
    for token in tokens:
        limits = (token.requests_in_flight, token.tokens_per_minute)
        table.add_row(
            escape(token.name),
            escape(token.owner or "-"),
            token.scope,
            _day(token.created),
            _day(last_uses[token.digest]) if token.digest in last_uses else "never",
            _expiry(token),
            *("any" if limit is None else f"{limit:,}" for limit in limits),
        )
    print_table(table)


@app.command("revoke")
def revoke_command(name: _NameArgument, as_json: JsonOption = False, home: HomeOption = None) -> None:
    """Revoke a token: a running server refuses it from the next request on. Logins by it end too."""
    paths = open_home(home, existing=True)
    with audit_action(paths, "token.revoke", name):
        token = TokenRepository(paths).revoke(name)
    if as_json:
        print(json.dumps({"name": token.name, "scope": token.scope, "revoked": True}))
        return
    print(f"the token of {token.name}, scope {token.scope}, is revoked")


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
    entries = AuditLog(existing_home(home)).entries(from_time, lambda why: print(f"left out: {why}", file=sys.stderr))
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


def _day(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M")


def _expiry(token: Token) -> str:
    if token.expires is None:
        return "never"
    return f"{_day(token.expires)}{' (expired)' if token.expired(time.time()) else ''}"
