"""The servers of `benchmarks.specialize`: how each is started, on what data. No package knows these names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.servers.database import make_database
from benchmarks.servers.files import make_files
from benchmarks.servers.graph import make_graph
from benchmarks.servers.repository import make_repository
from benchmarks.tasks.time_zones import TABLES
from benchmarks.tasks.time_zones import server_command as time_command
from testbed.environments import environment
from trainer_server.common import Home

MakeWorld = Callable[[Path, int], Path]
"""Makes the original of a world in an empty directory, by a seed, and returns its path."""


@dataclass(frozen=True, slots=True)
class BenchmarkServer:
    """A server of the benchmark.

    Args:
        command: Gives the command. `{world}` stands for the copy of the world. The first call may install the server.
        world: Makes what it works on. None: it works on nothing.
        env: Environment variables of the command.
        tables: Values of arguments that the server does not tell itself.
    """

    command: Callable[[], list[str]]
    world: MakeWorld | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    tables: Mapping[str, Sequence[Any]] = field(default_factory=dict)


def _python(name: str, package: str, *more: str) -> str:
    """The program of a server on PyPI, in an environment of its own."""
    return str(environment(name, package, *more) / name)


def _npx(package: str) -> list[str]:
    return ["npx", "--yes", f"@modelcontextprotocol/{package}"]


def _cache() -> dict[str, str]:
    """Where npx keeps packages."""
    return {"npm_config_cache": str(Home.find().cache / "test-envs" / "npm")}


SERVERS: dict[str, BenchmarkServer] = {
    "time": BenchmarkServer(time_command, tables=TABLES),
    "git": BenchmarkServer(
        lambda: [_python("mcp-server-git", "mcp-server-git"), "--repository", "{world}"], make_repository
    ),
    "sqlite": BenchmarkServer(
        lambda: [_python("mcp-server-sqlite", "mcp-server-sqlite==2025.4.25", "mcp<2"), "--db-path", "{world}"],
        make_database,
    ),
    "filesystem": BenchmarkServer(lambda: [*_npx("server-filesystem"), "{world}"], make_files, _cache()),
    "memory": BenchmarkServer(lambda: _npx("server-memory"), make_graph, {**_cache(), "MEMORY_FILE_PATH": "{world}"}),
    "everything": BenchmarkServer(lambda: _npx("server-everything"), env=_cache()),
}
"""By the name that `--server` takes."""
