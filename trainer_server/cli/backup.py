"""`art-langgraph backup | restore`: a copy of a server's home, made while it runs; and a home made of a copy."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from trainer_server.cli.local import HomeOption, JsonOption, audit_action, open_home
from trainer_server.common import Home
from trainer_server.server.backup import back_up, restore
from trainer_server.wire.text import quantity


def backup_command(
    directory: Annotated[
        Path, typer.Argument(help="Directory to make. It must not exist, or be empty.", show_default=False)
    ],
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """Copy a server's home into a directory. The server may run, and go on answering and training.

    The copy has policies, jobs, completions, rewards, runs, tokens, the server's key and the audit log; not logs, and
    not files that were exported. Weights are hard links where the directory is on the same file system: they take no
    space, and are lost with the disk. Copy the directory to another machine for a backup that survives this one.

    Example: art-langgraph backup /backups/art-2026-11-23
    """
    paths = open_home(home, existing=True)
    console = Console(emoji=False, stderr=True)
    with audit_action(paths, "backup", str(directory)), console.status("copying") as status:
        sizes = back_up(paths, directory, status.update)
    if as_json:
        print(json.dumps({"directory": str(directory), "files": len(sizes), "bytes": sum(sizes.values())}))
        return
    print(f"{quantity(len(sizes), 'file')}, {sum(sizes.values()) / 2**20:,.1f} MiB in {directory}")


def restore_command(
    directory: Annotated[Path, typer.Argument(help="Directory that `backup` made. It stays as it is.")],
    home: Annotated[Path, typer.Option("--home", help="The new home. It must not exist, or be empty.")],
    as_json: JsonOption = False,
) -> None:
    """Make a home of a copy. Nothing is overwritten; the copy is checked first.

    Do not let the old server and the restored one serve at once: both would give the same names to other weights.

    Example: art-langgraph restore /backups/art-2026-11-23 --home ~/.art-langgraph
    """
    paths = Home.find(home)
    console = Console(emoji=False, stderr=True)
    with console.status("copying") as status:
        sizes = restore(directory, paths, status.update)
    with audit_action(paths, "restore", str(directory)):
        if as_json:
            print(json.dumps({"home": str(paths.root), "files": len(sizes), "bytes": sum(sizes.values())}))
        else:
            files = quantity(len(sizes), "file")
            print(f"{files} in {paths.root}: art-langgraph serve --home {shlex.quote(str(paths.root))}")
