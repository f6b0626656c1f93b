"""MCP servers that nobody here wrote, on scratch data: `python -m tests.support.mcp.real_servers` prints the table."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from art_mcp import ScenarioSet, connect, generate_scenarios
from testbed.environments import environment
from testbed.npm import npm_program
from trainer_server.common import Home

ZONES = ("Europe/Oslo", "Asia/Tokyo", "America/New_York", "Africa/Cairo", "Asia/Kolkata", "Pacific/Auckland",
         "Europe/London", "America/Sao_Paulo", "Australia/Perth", "Asia/Dubai")  # fmt: skip

Command = Callable[[Path], list[str]]
"""What starts a server, given an empty directory for its data."""


@dataclass(frozen=True, slots=True)
class RealServer:
    """tools: how many it has at least. kept: scenarios of 10 that must be left at least. data: whether it works on data
    of ours, of which each run gets a copy."""

    name: str
    command: Command
    tools: int
    kept: int = 10
    tables: Callable[[Path], dict[str, Sequence[Any]]] = lambda _: {}
    needs: str = "python"
    data: bool = True


@dataclass(slots=True)
class Row:
    name: str
    tools: int
    found: ScenarioSet
    seconds: float = field(default=0.0)

    @property
    def generated(self) -> int:
        return len(self.found) + len(self.found.dropped)

    @property
    def executed(self) -> int:
        return len(self.found) + sum(one.kind in ("error", "empty") for one in self.found.dropped)

    def __str__(self) -> str:
        used = sum(count > 0 for count in self.found.coverage.values())
        checked = sum(bool(one.plan.facts) for one in self.found.scenarios)
        chains = sum(any(step.needs for step in one.plan.reference) for one in self.found.scenarios)
        cells = (self.name, self.tools, self.generated, self.executed, len(self.found), checked, chains, used)
        return "| " + " | ".join(map(str, cells)) + f" | {self.seconds:.0f} s |"


HEADER = (
    "| server | tools | generated | executed | kept | with facts | chains | tools used | time |\n"
    "|---|---|---|---|---|---|---|---|---|"
)


def _git(where: Path) -> list[str]:
    repository = where / "repository"
    run = ["git", "-C", str(repository), "-c", "user.name=A", "-c", "user.email=a@example.com"]
    subprocess.run(["git", "init", "-q", "-b", "main", str(repository)], check=True)
    for number, text in enumerate(("one\n", "one\ntwo\n", "one\ntwo\nthree\n")):
        (repository / "notes.txt").write_text(text)
        subprocess.run([*run, "add", "."], check=True)
        subprocess.run([*run, "commit", "-q", "-m", f"change {number}"], check=True)
    subprocess.run([*run, "branch", "feature"], check=True)
    (repository / "notes.txt").write_text("changed\n")
    python = environment("mcp-server-git", "mcp-server-git") / "python"
    return [str(python), "-m", "mcp_server_git", "--repository", str(repository)]


def _sqlite(where: Path) -> list[str]:
    with sqlite3.connect(where / "shop.sqlite") as database:
        database.executescript(
            "create table users (id integer primary key, name text, city text);"
            "create table orders (id integer primary key, user_id integer, total real);"
            "insert into users values (1, 'Ada', 'Oslo'), (2, 'Bob', 'Rome'), (3, 'Eve', 'Lima');"
            "insert into orders values (1, 1, 9.5), (2, 3, 120.25);"
        )
    database.close()
    program = environment("mcp-server-sqlite", "mcp-server-sqlite==2025.4.25", "mcp<2") / "mcp-server-sqlite"
    return [str(program), "--db-path", str(where / "shop.sqlite")]


def _filesystem(where: Path) -> list[str]:
    (where / "letters").mkdir()
    for name, text in (("plan.txt", "Meet at noon."), ("letters/ada.md", "# Dear Ada"), ("letters/bob.md", "# Hi Bob")):
        (where / name).write_text(text)
    return [*of_npm("server-filesystem"), str(where)]


def of_npm(package: str) -> list[str]:
    """Starts a server that is started once for each copy of its data."""
    return [str(npm_program(f"@modelcontextprotocol/{package}", f"mcp-{package}"))]


SERVERS = (
    RealServer(
        "mcp-server-time",
        lambda _: [str(environment("mcp-server-time", "mcp-server-time") / "python"), "-m", "mcp_server_time"],
        tools=2,
        tables=lambda _: {"timezone": ZONES},
        data=False,
    ),
    RealServer("mcp-server-git", _git, tools=12, tables=lambda where: {"repo_path": [str(where / "repository")]}),
    RealServer("mcp-server-sqlite", _sqlite, tools=6),
    RealServer(
        "server-everything",
        lambda _: ["npx", "--yes", "@modelcontextprotocol/server-everything"],
        tools=10,
        needs="npx",
        data=False,
    ),
    RealServer("server-filesystem", _filesystem, tools=11, needs="npx"),
    RealServer("server-memory", lambda _: of_npm("server-memory"), tools=9, kept=8, needs="npx"),
)


async def try_out(server: RealServer, where: Path, n: int = 10) -> Row:
    """Generates scenarios for a server, on fresh data."""
    command = server.command(where)
    cache = Home.find().cache / "test-envs" / "npm"
    env = {"npm_config_cache": str(cache), "MEMORY_FILE_PATH": str(where / "memory.jsonl")}
    loop = asyncio.get_running_loop()
    worlds = [where] if server.data else None
    async with connect(command, env=env, cwd=str(where), start_timeout=300, worlds=worlds) as connected:
        started = loop.time()
        found = await generate_scenarios(connected, n, resources=server.tables(where), seconds=300, progress=False)
        return Row(server.name, len(found.offered), found, loop.time() - started)


def main() -> None:
    print(HEADER)
    for server in SERVERS:
        if server.needs == "npx" and shutil.which("npx") is None:
            print(f"| {server.name} | skipped: npx is missing |")
            continue
        with tempfile.TemporaryDirectory() as where:
            row = asyncio.run(try_out(server, Path(where)))
        print(row, flush=True)
        if "-v" in sys.argv:
            print(row.found.report(), *(one.task for one in row.found.scenarios), sep=os.linesep, flush=True)


if __name__ == "__main__":
    main()
