"""Adds the commands of this folder to `art-langgraph`."""

from __future__ import annotations

import typer

from art_langgraph.cli.watching.status import status_command
from art_langgraph.cli.watching.top import top_command
from art_langgraph.cli.watching.watch import watch_command


def register(root: typer.Typer) -> None:
    """Adds `status`, `watch` and `top` to `art-langgraph`."""
    root.command("status")(status_command)
    root.command("watch")(watch_command)
    root.command("top")(top_command)
