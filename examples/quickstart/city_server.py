"""An MCP server over stdio with invented facts about cities.

Every value is derived from the city's name by a hash, so that a correct answer needs a tool call.
Run it by itself: `python city_server.py`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

sys.path.insert(0, str(Path(__file__).parent))  # run as a script, from anywhere

import cities

server = MCPServer("cities", version="1.0.0", log_level="WARNING")


@server.tool()
def get_weather(city: str) -> str:
    """Temperature in a city now."""
    return cities.weather(_known(city))


@server.tool()
def get_time(city: str) -> str:
    """Local time in a city."""
    return cities.local_time(_known(city))


@server.tool()
def get_population(city: str) -> str:
    """Number of people who live in a city."""
    return cities.population(_known(city))


@server.tool()
def get_altitude(city: str) -> str:
    """Height of a city above the sea."""
    return cities.altitude(_known(city))


@server.tool()
def get_bus_fare(city: str) -> str:
    """Price of a bus ride in a city."""
    return cities.bus_fare(_known(city))


@server.tool()
def get_taxi_fare(city: str) -> str:
    """Price of a taxi ride in a city."""
    return cities.taxi_fare(_known(city))


def _known(city: str) -> str:
    """The name of the city without spaces around it. Raises ToolError if it cannot be the name of a city."""
    name = city.strip()
    if not name.replace(" ", "").replace("-", "").isalpha() or len(name) > 30:
        raise ToolError(f"there is no city called {city!r}")
    return name


if __name__ == "__main__":
    server.run()
