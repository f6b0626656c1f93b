"""A recorded week of weather at invented stations: what the weather server knows. It never changes."""

from __future__ import annotations

import random
from typing import Literal, get_args

from typing_extensions import TypedDict  # pydantic takes that of typing from Python 3.12 on

REGIONS = {
    "north": ["Alderby", "Brackholm", "Cawsund", "Dunmere", "Elvik", "Fossness"],
    "south": ["Garonda", "Hellis", "Istrand", "Jorvale", "Kestra", "Lumina"],
    "coast": ["Marenport", "Nysand", "Ostrand", "Pellmouth", "Quarry Bay", "Rivaro"],
    "hills": ["Sarnholt", "Tarnby", "Ulmstead", "Vellgarth", "Westerlow", "Yarrow"],
}
"""The stations of each region."""
Region = Literal["north", "south", "coast", "hills"]
Day = Literal["today", "tomorrow", "monday", "tuesday", "wednesday"]
DAYS = get_args(Day)
SKIES = ("clear", "cloudy", "rain", "snow", "fog", "thunder")
EVENTS = ("storm warning", "flood watch", "frost warning", "heat advisory", "fog advisory")


class Forecast(TypedDict):
    """The forecast of a day: degrees Celsius, the sky, and kilometres per hour."""

    high: int
    low: int
    sky: str
    wind: int


class Alert(TypedDict):
    """An alert for a region, and until when it holds."""

    event: str
    severity: str
    ends: str


def recorded_forecasts() -> dict[str, dict[str, Forecast]]:
    """The forecasts, by station and day."""
    rng = random.Random("recorded-weather")
    made: dict[str, dict[str, Forecast]] = {}
    for station in (name for names in REGIONS.values() for name in names):
        made[station] = {}
        for day in DAYS:
            high = rng.randrange(2, 34)
            low = high - rng.randrange(3, 12)
            made[station][day] = Forecast(high=high, low=low, sky=rng.choice(SKIES), wind=rng.randrange(4, 90))
    return made


def recorded_alerts() -> dict[str, list[Alert]]:
    """The alerts, by region. One of the regions has none."""
    rng = random.Random("recorded-alerts")
    return {
        region: [
            Alert(event=event, severity=rng.choice(("minor", "moderate", "severe")), ends=f"{rng.randrange(6, 23)}:00")
            for event in rng.sample(EVENTS, number)
        ]
        for number, region in zip((2, 1, 3, 0), REGIONS, strict=True)
    }
