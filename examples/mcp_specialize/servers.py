"""The servers: how each is started, and on what it works."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from art_examples.mcp_specialize.worlds import make_library, make_repository


@dataclass(frozen=True, slots=True, kw_only=True)
class ExampleServer:
    """An MCP server.

    Args:
        program: The program. None: it is not installed.
        package: The package that has it. Empty: it is in this folder.
        arguments: Its arguments. `{world}` stands for the copy of the world.
        world: Makes what it works on in an empty directory, by a seed. None: it works on nothing.
        minutes: Time of a whole run.
    """

    program: str | None
    package: str = ""
    arguments: tuple[str, ...] = ()
    world: Callable[[Path, int], Path] | None = None
    minutes: float = 20.0


def _package(name: str) -> dict[str, Any]:
    """A package and its program, which has the same name, beside this Python or in PATH."""
    return {"program": shutil.which(name, path=Path(sys.executable).parent) or shutil.which(name), "package": name}


PYTHON, HERE = sys.executable, Path(__file__).parent
SERVERS = {
    "weather": ExampleServer(program=PYTHON, arguments=(str(HERE / "weather_server.py"),), minutes=12.0),
    "sqlite": ExampleServer(program=PYTHON, arguments=(str(HERE / "sqlite_server.py"), "{world}"), world=make_library),
    "time": ExampleServer(**_package("mcp-server-time"), minutes=12.0),
    "git": ExampleServer(**_package("mcp-server-git"), arguments=("--repository", "{world}"), world=make_repository),
}
