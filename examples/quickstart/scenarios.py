"""Questions about cities. Held-out questions use cities and wordings that training does not use."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from art_examples.quickstart import cities

from art_langgraph import Scenario

TRAINING_CITIES = (
    "London",
    "Berlin",
    "Madrid",
    "Vienna",
    "Oslo",
    "Lisbon",
    "Prague",
    "Dublin",
    "Athens",
    "Warsaw",
    "Helsinki",
    "Budapest",
    "Brussels",
    "Zurich",
    "Geneva",
    "Hamburg",
    "Munich",
    "Milan",
    "Naples",
    "Turin",
    "Lyon",
    "Nice",
    "Seville",
    "Valencia",
    "Porto",
    "Krakow",
    "Riga",
    "Vilnius",
    "Tallinn",
    "Bergen",
    "Tokyo",
    "Osaka",
    "Kyoto",
    "Seoul",
    "Beijing",
    "Shanghai",
    "Mumbai",
    "Delhi",
    "Bangkok",
    "Hanoi",
    "Manila",
    "Jakarta",
    "Sydney",
    "Perth",
    "Chicago",
    "Boston",
    "Seattle",
    "Denver",
)
HELD_OUT_CITIES = (
    "Stockholm",
    "Copenhagen",
    "Amsterdam",
    "Barcelona",
    "Florence",
    "Venice",
    "Marseille",
    "Toulouse",
    "Dresden",
    "Cologne",
    "Frankfurt",
    "Salzburg",
    "Glasgow",
    "Edinburgh",
    "Cairo",
    "Nairobi",
    "Lagos",
    "Accra",
    "Lima",
    "Bogota",
    "Santiago",
    "Toronto",
    "Montreal",
    "Vancouver",
    "Dallas",
    "Houston",
    "Miami",
    "Phoenix",
    "Singapore",
    "Melbourne",
)


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of question.

    Args:
        tool: The tool that answers the question.
        value: Gives the tool's result for a city.
        training: Wordings for training. `{city}` stands for the city.
        held_out: Wordings for held-out scenarios.
    """

    tool: str
    value: Callable[[str], str]
    training: tuple[str, ...]
    held_out: tuple[str, ...]

    def scenario(self, city: str, wording: str) -> Scenario:
        """The scenario that asks for a city with a wording. Its metadata has the expected call and value."""
        return Scenario(
            id=f"{self.tool}-{city}-{cities.number(wording, 'wording', 0, 9_999):04d}",
            input={"messages": [("user", wording.format(city=city))]},
            metadata={"tool": self.tool, "arguments": {"city": city}, "value": self.value(city)},
        )


KINDS = (
    Kind(
        "get_weather",
        cities.weather,
        (
            "How warm is it in {city}?",
            "What is the temperature in {city}?",
            "Is it cold in {city} now?",
            "Tell me the weather in {city}.",
        ),
        ("What's the weather like in {city}?", "How hot is it in {city} today?"),
    ),
    Kind(
        "get_time",
        cities.local_time,
        (
            "What time is it in {city}?",
            "Tell me the local time in {city}.",
            "What do clocks show in {city}?",
            "Which hour does the clock strike in {city}?",
        ),
        ("What is the time in {city} now?", "What does the clock say in {city}?"),
    ),
    Kind(
        "get_population",
        cities.population,
        (
            "How many people live in {city}?",
            "What is the population of {city}?",
            "How many inhabitants has {city}?",
            "Tell me the number of people in {city}.",
        ),
        ("How large is the population of {city}?", "Tell me how many people there are in {city}."),
    ),
    Kind(
        "get_altitude",
        cities.altitude,
        (
            "How high above the sea is {city}?",
            "What is the altitude of {city}?",
            "At what height does {city} lie?",
            "How far above the sea does {city} lie?",
        ),
        ("Tell me the altitude of {city}.", "How many metres above the sea does {city} lie?"),
    ),
    Kind(
        "get_bus_fare",
        cities.bus_fare,
        (
            "What does a bus cost in {city}?",
            "How much is a bus ride in {city}?",
            "What is the bus fare in {city}?",
            "Tell me what a bus ride costs in {city}.",
        ),
        ("What do I pay for a bus in {city}?", "Tell me the price of a bus ride in {city}."),
    ),
    Kind(
        "get_taxi_fare",
        cities.taxi_fare,
        (
            "What does a taxi cost in {city}?",
            "How much is a taxi ride in {city}?",
            "What is the taxi fare in {city}?",
            "Tell me what a taxi ride costs in {city}.",
        ),
        ("What do I pay for a taxi in {city}?", "Tell me the price of a taxi ride in {city}."),
    ),
)


def training_scenarios(seed: int) -> list[Scenario]:
    """Every kind of question for every training city, in an order that the seed chooses. Kinds alternate, and within a
    kind its wordings."""
    rng = random.Random(f"quickstart-{seed}")
    drawn = [rng.sample(TRAINING_CITIES, len(TRAINING_CITIES)) for _ in KINDS]
    wordings = [rng.sample(kind.training, len(kind.training)) for kind in KINDS]
    return [
        kind.scenario(drawn[index][at], wordings[index][at % len(kind.training)])
        for at in range(len(TRAINING_CITIES))
        for index, kind in enumerate(KINDS)
    ]


def held_out_scenarios(n: int = 120) -> list[Scenario]:
    """The first n held-out scenarios. Kinds alternate, so that they are spread evenly.

    Args:
        n: Number of scenarios, at most 360.
    """
    scenarios = [
        kind.scenario(
            HELD_OUT_CITIES[(at + 7 * index) % len(HELD_OUT_CITIES)],
            kind.held_out[(at + at // len(HELD_OUT_CITIES)) % 2],
        )
        for at in range(2 * len(HELD_OUT_CITIES))
        for index, kind in enumerate(KINDS)
    ]
    return scenarios[:n]
