"""A real MCP server over stdio: facts about cities that nobody can know without asking it.

Every value is derived from the city's name by a hash, so that an answer must come from a call.
Run it by itself: `python city_server.py`.
"""

from __future__ import annotations

import hashlib
from typing import Literal

from mcp.server import MCPServer

server = MCPServer("cities", version="1.0.0")


def number(city: str, what: str, low: int, high: int) -> int:
    """A value between low and high that belongs to a city."""
    digest = hashlib.sha256(f"{what}:{city.strip().lower()}".encode()).digest()
    return low + int.from_bytes(digest[:4], "big") % (high - low + 1)


def weather(city: str) -> str:
    return f"{number(city, 'weather', -9, 39)} C"


def local_time(city: str) -> str:
    return f"{number(city, 'hour', 0, 23):02d}:{number(city, 'minute', 0, 59):02d}"


def population(city: str) -> str:
    return f"{number(city, 'population', 101, 999)} thousand"


def altitude(city: str) -> str:
    return f"{number(city, 'altitude', 11, 990)} m"


def fare(city: str, ride: str) -> str:
    return f"{number(city, ride, 2, 49)} euros"


@server.tool()
def get_weather(city: str) -> str:
    """Temperature in a city now."""
    return weather(_known(city))


@server.tool()
def get_time(city: str) -> str:
    """Local time in a city."""
    return local_time(_known(city))


@server.tool()
def get_population(city: str) -> str:
    """Number of people who live in a city."""
    return population(_known(city))


@server.tool()
def get_altitude(city: str) -> str:
    """Height of a city above the sea."""
    return altitude(_known(city))


@server.tool()
def get_fare(city: str, ride: Literal["bus", "taxi"]) -> str:
    """Price of a bus or taxi ride in a city."""
    return fare(_known(city), ride)


def _known(city: str) -> str:
    name = city.strip()
    if not name.replace(" ", "").replace("-", "").isalpha() or len(name) > 30:
        raise ValueError(f"there is no city called {city!r}")
    return name


if __name__ == "__main__":
    server.run()
