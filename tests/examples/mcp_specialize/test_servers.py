"""The servers of mcp_specialize, over stdio: what they answer, and that scenarios can be made of them."""

from __future__ import annotations

import sqlite3
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest
from art_examples.mcp_specialize.servers import SERVERS
from art_examples.mcp_specialize.weather import REGIONS, recorded_alerts, recorded_forecasts
from art_examples.mcp_specialize.worlds import make_library, make_repository

from art_mcp import Server, connect
from art_mcp.scenarios.generate import generate_scenarios


@asynccontextmanager
async def opened(name: str, where: Path) -> AsyncIterator[Server]:
    server = SERVERS[name]
    worlds = [server.world(where, 0)] if server.world else None
    assert server.program is not None
    async with connect([server.program, *server.arguments], worlds=worlds) as connected:
        yield connected


async def test_the_weather_is_what_was_recorded(tmp_path: Path) -> None:
    async with opened("weather", tmp_path) as server:
        stations = await server.call("list_stations", {"region": "coast"})
        assert stations.structured == {"result": REGIONS["coast"]}
        forecast = await server.call("get_forecast", {"station": "Quarry Bay", "day": "monday"})
        assert forecast.structured == recorded_forecasts()["Quarry Bay"]["monday"]
        alerts = await server.call("get_alerts", {"region": "north"})
        assert alerts.structured == {"result": recorded_alerts()["north"]}
        missing = await server.call("get_forecast", {"station": "Nowhere"})
        assert missing.is_error
        assert "there is no station 'Nowhere'" in missing.text


@pytest.mark.usefixtures("own_cache")
async def test_the_database_is_read_and_never_written(tmp_path: Path) -> None:
    async with opened("sqlite", tmp_path) as server:
        assert (await server.call("list_tables", {})).structured == {"result": ["books", "loans", "readers"]}
        columns = await server.call("describe_table", {"table": "books"})
        assert {"column": "title", "type": "TEXT"} in columns.structured["result"]
        counted = await server.call("read_query", {"query": "SELECT COUNT(*) AS n FROM readers"})
        assert counted.structured == {"result": [{"n": 8}]}
        for query in ("DELETE FROM readers", "SELECT nothing FROM readers"):
            assert (await server.call("read_query", {"query": query})).is_error
        assert (await server.call("describe_table", {"table": "x; DROP TABLE books"})).is_error


@pytest.mark.slow
@pytest.mark.parametrize("name", ["weather", "sqlite"])
async def test_scenarios_use_every_tool(name: str, tmp_path: Path) -> None:
    async with opened(name, tmp_path) as server:
        found = await generate_scenarios(server, 40, seconds=300, progress=False)
    assert len(found) == 40
    assert all(found.coverage.values())
    assert found.held_out


def test_worlds_are_the_same_for_a_seed(tmp_path: Path) -> None:
    told = []
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        with closing(sqlite3.connect(make_library(tmp_path / folder, 3))) as database:
            rows = database.execute("SELECT * FROM loans").fetchall()
        repository = make_repository(tmp_path / folder, 3)
        log = subprocess.run(["git", "-C", str(repository), "log", "--all"], capture_output=True, check=True).stdout
        told.append((rows, log))
    assert told[0] == told[1]
