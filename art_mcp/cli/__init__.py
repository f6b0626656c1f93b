"""`art-langgraph specialize` and `art-langgraph scenarios`."""

from __future__ import annotations

import typer

from art_mcp.cli.scenarios import scenarios_command
from art_mcp.cli.specialize import specialize_command


def register(root: typer.Typer) -> None:
    """Adds the commands to `art-langgraph`."""
    root.command("scenarios")(scenarios_command)
    root.command("specialize")(specialize_command)
