"""Options that several commands have, and what commands share that work on the files of a server's home."""

from __future__ import annotations

import getpass
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from trainer_server.common import Home
from trainer_server.common.options import help_of, near_name
from trainer_server.server.access.audit import AuditLog
from trainer_server.server.config import ServerConfig
from trainer_server.wire import ARTError, ConfigError

HomeOption = Annotated[
    Path | None, typer.Option("--home", help="State directory of the server (ART_HOME, ~/.art-langgraph).")
]

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
_MEANINGS = help_of(ServerConfig)
ToolOption = Annotated[str, typer.Option(help=_MEANINGS["tool_call_parser"])]
ReasoningOption = Annotated[str, typer.Option(help=_MEANINGS["reasoning_parser"])]


def open_home(root: Path | None, *, existing: bool = False) -> Home:
    """A home for a command: readable by its owner only.

    Args:
        root: Its directory; None: as `Home.find`.
        existing: Whether it must exist. Otherwise it is made, and the standard error says so.

    Raises:
        ConfigError: It does not exist, and must, or its name may be a misspelt one; or it cannot be made.
    """
    home = existing_home(root) if existing else Home.find(root)
    new = not home.root.exists()
    if new and (_near(home) or not home.root.parent.is_dir()):
        raise ConfigError(
            f"{_missing(home)}; for a server that is not there yet, make it first: "
            f"mkdir -p {shlex.quote(str(home.root))}"
        )
    change = home.make_private()
    if new:
        command = f"art-langgraph serve --home {shlex.quote(str(home.root))}"
        print(f"{home.root} did not exist, and is made: {command}", file=sys.stderr)
    if change:
        print(change, file=sys.stderr)
    return home


def existing_home(root: Path | None) -> Home:
    """The home of a server that has been there, as it is. Nothing of it is changed.

    Args:
        root: Its directory; None: as `Home.find`.

    Raises:
        ConfigError: There is no such directory, or it is no home.
    """
    home = Home.find(root)
    if not home.root.exists():
        raise ConfigError(_missing(home))
    if not _is_home(home):
        raise ConfigError(f"{home.root} is no home of a server: name one by --home or ART_HOME")
    return home


def _missing(home: Home) -> str:
    near = _near(home)
    meant = f" (did you mean {near}?)" if near else ""
    return f"{home.root} does not exist{meant}: name the home of a server by --home or ART_HOME"


def _near(home: Home) -> Path | None:
    """A home beside this one with nearly its name."""
    above = home.root.parent
    names = [path.name for path in above.iterdir() if _is_home(Home(path))] if above.is_dir() else []
    match = near_name(home.root.name, names)
    return above / match if match else None


def _is_home(home: Home) -> bool:
    return any(path.exists() for path in (home.identity, home.tokens, home.token, home.ledger))


@contextmanager
def audit_action(home: Home, action: str, target: str) -> Iterator[None]:
    """Adds a line to the audit log when the block ends, whether it failed or not.

    Raises:
        ConfigError: The line could not be written.
    """
    who = f"cli:{_user()}"
    try:
        yield
    except BaseException as error:
        _add(home, who, action, target, failed=not isinstance(error, ARTError), refused=isinstance(error, ARTError))
        raise
    _add(home, who, action, target)


def print_table(table: Table) -> None:
    """Prints a table in which nothing is cut: one that is wider than the terminal is folded by it."""
    console = Console(emoji=False)
    width = Measurement.get(console, console.options.update_width(10_000), table)
    console.width = max(console.width, width.minimum if console.is_terminal else width.maximum)
    console.print(table)


def _add(home: Home, who: str, action: str, target: str, *, failed: bool = False, refused: bool = False) -> None:
    try:
        AuditLog(home).add(who, action, target, "failed" if failed else "refused" if refused else "ok")
    except OSError as error:
        raise ConfigError(f"{action} {target}: the audit log at {home.audit} could not be written: {error}") from None


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a user id without a name, as in a container
        return "unknown"
