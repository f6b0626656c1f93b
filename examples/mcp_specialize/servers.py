"""The servers: how each is started, and on what it works."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from art_examples.mcp_specialize.worlds import make_library, make_repository


@dataclass(frozen=True, slots=True, kw_only=True)
class ExampleServer:
    """An MCP server.

    Args:
        program: The program. None: it is not installed.
        arguments: Its arguments. `{world}` stands for the copy of the world.
        world: Makes what it works on in an empty directory, by a seed. None: it works on nothing.
        package: The package that has it. Empty: it is in this folder.
    """

    program: str | None
    arguments: tuple[str, ...] = ()
    world: Callable[[Path, int], Path] | None = None
    package: str = ""


def _installed(program: str) -> str | None:
    """A program beside this Python, or in PATH. None: it is in neither."""
    return shutil.which(program, path=Path(sys.executable).parent) or shutil.which(program)


SERVERS = {
    "weather": ExampleServer(program=sys.executable, arguments=(str(Path(__file__).with_name("weather_server.py")),)),
    "sqlite": ExampleServer(
        program=sys.executable,
        arguments=(str(Path(__file__).with_name("sqlite_server.py")), "{world}"),
        world=make_library,
    ),
    "time": ExampleServer(program=_installed("mcp-server-time"), package="mcp-server-time"),
    "git": ExampleServer(
        program=_installed("mcp-server-git"),
        arguments=("--repository", "{world}"),
        world=make_repository,
        package="mcp-server-git",
    ),
}
