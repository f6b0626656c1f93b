"""Adds the commands of this folder to `art-langgraph`."""

from __future__ import annotations

import typer

from art_langgraph.cli.setup.connect import connect_command, disconnect_command
from art_langgraph.cli.setup.init import init_command


def register(root: typer.Typer) -> None:
    """Adds `init`, `connect` and `disconnect` to `art-langgraph`."""
    root.command("init")(init_command)
    root.command("connect")(connect_command)
    root.command("disconnect")(disconnect_command)
