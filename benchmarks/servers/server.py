"""What the benchmark of `specialize` must know of a server: how to install it, how to start it, on what data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from testbed.environments import environment
from trainer_server.common import Home

MakeWorld = Callable[[Path, int], Path]
"""Makes the original of a world in an empty directory, by a seed, and returns its path."""

Use = Literal["development", "seen", "untouched"]
"""What a server is for: rules of the generation are developed on some. Some were run untouched, and their failures were
read afterwards, for faults that others may have too. The others are run once, at the end."""


@dataclass(frozen=True, slots=True)
class BenchmarkServer:
    """A server of the benchmark.

    Args:
        name: What `--server` takes.
        command: Gives the command. `{world}` stands for the copy of the world. The first call may install the server.
        world: Makes what it works on. None: it works on nothing.
        env: Environment variables of the command.
        tables: Values of arguments that the server does not tell itself.
        use: What it is for.
        endpoint: Path of a server over streamable HTTP. `{port}` in the command stands for the port where it listens,
            on 127.0.0.1. None: a server over stdio.
    """

    name: str
    command: Callable[[], list[str]]
    world: MakeWorld | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    tables: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    use: Use = "untouched"
    endpoint: str | None = None


def pypi(program: str, *packages: str) -> str:
    """The path of a server's program, in an environment of its own.

    Args:
        program: Its file name, which names the environment too.
        packages: What pip installs.
    """
    return str(environment(program, *packages) / program)


def npx(package: str) -> list[str]:
    """The words that run a package of npm.

    Args:
        package: Its name, with a version after `@`.
    """
    return ["npx", "--yes", package]


def npm_cache() -> dict[str, str]:
    """The environment variable that names the directory where npx keeps packages."""
    return {"npm_config_cache": str(Home.find().cache / "test-envs" / "npm")}
