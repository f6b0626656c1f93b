"""Invented facts about cities, derived from their names by a hash. A model can only know them from the server."""

from __future__ import annotations

import hashlib


def number(city: str, what: str, low: int, high: int) -> int:
    """A number for a city that is always the same.

    Args:
        city: Name of the city. Case does not matter.
        what: The kind of fact.
        low: Least number.
        high: Greatest number.
    """
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


def bus_fare(city: str) -> str:
    return f"{number(city, 'bus', 2, 9)} euros"


def taxi_fare(city: str) -> str:
    return f"{number(city, 'taxi', 10, 49)} euros"
