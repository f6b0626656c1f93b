"""Values that anybody knows: time zones, cities, currencies, dates, words for new things."""

from __future__ import annotations

import random
import zoneinfo
from collections.abc import Callable, Mapping, Sequence
from datetime import date, timedelta
from functools import cache
from typing import Any

from art_mcp.client.effects import words
from art_mcp.scenarios.phrasing.language import VALUES
from art_mcp.validation import fits_pattern


@cache
def timezones() -> tuple[str, ...]:
    """Time zones as IANA names them, one for each city."""
    zones = (zone for zone in zoneinfo.available_timezones() if zone.count("/") == 1)
    return tuple(sorted(zone for zone in zones if zone.partition("/")[0] in VALUES.timezone_areas))


def known_by(name: str, description: str = "") -> Sequence[str]:
    """Values that a parameter may take, by its name. Empty: nothing is known of it.

    Args:
        name: The parameter.
        description: What its schema says of it.
    """
    parts = words(name)
    letters = "".join(parts)
    if letters.endswith(("timezone", "tz")) or (parts[-1:] == ["zone"] and "IANA" in description):
        return timezones()
    last = parts[-1] if parts else ""
    return VALUES.lists.get(VALUES.same.get(last, last), ())


def is_well_known(text: str) -> bool:
    """Whether a value is a time zone, a currency, a language or a colour: more is known of it than its name."""
    return text.casefold() in _well_known()


@cache
def _well_known() -> frozenset[str]:
    values = [value for name in VALUES.well_known for value in VALUES.lists[name]]
    return frozenset(value.casefold() for value in (*values, *timezones(), *VALUES.timezone_areas, "UTC", "GMT"))


def phrase(rng: random.Random) -> str:
    """A short text about nothing in particular, for a message or a note."""
    text = f"{rng.choice(VALUES.activities)} {rng.choice(VALUES.things)}"
    return text[:1].upper() + text[1:]


def mixture(texts: Sequence[str], rng: random.Random) -> str:
    """A text like some others, of several words each: one of their first words, and what follows another's."""
    first, second = rng.sample(texts, 2)
    return f"{first.split()[0]} {second.partition(' ')[2].strip()}"


def new_name(rng: random.Random) -> str:
    """The name of a new thing."""
    first, second = rng.sample(VALUES.names, 2)
    return rng.choice((first, f"{first}-{second}", f"{first}-{second}"))


def _day(rng: random.Random) -> date:
    return date(2024, 1, 1) + timedelta(days=rng.randrange(700))


def _clock(rng: random.Random) -> str:
    return f"{rng.randrange(24):02d}:{rng.choice((0, 5, 10, 15, 20, 25, 30, 35, 40, 45, 50, 55)):02d}"


FORMATS: dict[str, Callable[[random.Random], str]] = {
    "date": lambda rng: _day(rng).isoformat(),
    "time": _clock,
    "date-time": lambda rng: f"{_day(rng).isoformat()}T{_clock(rng)}:00Z",
    "email": lambda rng: f"{rng.choice(VALUES.names)}@example.com",
    "uri": lambda rng: f"https://example.com/{rng.choice(VALUES.names)}",
    "hostname": lambda rng: f"{rng.choice(VALUES.names)}.example.com",
    "ipv4": lambda rng: f"192.0.2.{rng.randrange(1, 255)}",
    "hex colour": lambda rng: f"#{rng.randrange(1 << 24):06x}",
    "uuid": lambda rng: f"{rng.getrandbits(128):032x}"[:8] + "-0000-4000-8000-" + f"{rng.getrandbits(48):012x}",
}
"""Texts by the format that a schema names."""


def draw_formatted_text(name: str, schema: Mapping[str, Any], rng: random.Random) -> str | None:
    """A text in the format that a schema or its description names. None: no known format is named.

    Args:
        name: The parameter.
        schema: Its schema.
        rng: Source of randomness.
    """
    about = f"{schema.get('description', '')} {schema.get('title', '')}".casefold()
    marks = (form for mark, form in VALUES.formats.items() if mark.casefold() in about)
    form = schema.get("format") or next(marks, None)
    if form is None:
        form = "email" if words(name)[-1:] in (["email"], ["mail"]) else "hex colour" if "hex" in words(name) else None
    text = FORMATS[form](rng) if form in FORMATS else None
    return text if text is not None and fits_pattern(schema.get("pattern"), text) else None
