"""The servers of the benchmark are found, and some of them start."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.servers.registry import SERVERS
from benchmarks.specialize import connected

SIX = {"time", "git", "sqlite", "filesystem", "memory", "everything"}


def test_rules_are_developed_on_some_servers_and_proved_on_others() -> None:
    use = {name: server.use for name, server in SERVERS.items()}
    assert {name for name in SIX if use[name] == "development"} == SIX
    assert sum(one == "development" for one in use.values()) == len(SIX) + 4
    assert sum(one == "untouched" for one in use.values()) >= 6
    assert sum(server.endpoint is not None for server in SERVERS.values()) >= 2


@pytest.mark.servers
@pytest.mark.parametrize(("name", "tool"), [("todo-txt-mcp", "list_todos"), ("mcp-server-duckdb", "query")])
async def test_a_server_of_other_people_lists_its_tools(name: str, tool: str, tmp_path: Path) -> None:
    async with connected(SERVERS[name], tmp_path, 0) as server:
        assert tool in [entry["name"] for entry in await server.listing("tools/list")]
