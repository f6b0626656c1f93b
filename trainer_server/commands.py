"""The entry point of the server's commands. Where the server cannot run, each of them says so in one line."""

from __future__ import annotations

import sys

import typer

from trainer_server.wire.errors import require_linux

NAMES = ("demo", "serve", "plan", "doctor", "engine", "tokens", "audit", "backup", "restore", "ledger")
"""What `trainer_server.cli` registers. It cannot be imported elsewhere: it imports fcntl."""


def register(app: typer.Typer) -> None:
    """Adds this package's commands to `art-langgraph`."""
    if sys.platform == "linux":
        from trainer_server import cli

        cli.register(app)
        return
    settings = {"ignore_unknown_options": True, "allow_extra_args": True}
    for name in NAMES:
        app.command(name, help="(needs Linux)", hidden=True, context_settings=settings)(_refuse)


def _refuse(context: typer.Context) -> None:
    require_linux(f"`art-langgraph {context.info_name}`")
