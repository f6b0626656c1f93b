"""The task `time`: what time is it elsewhere, by the tools of `mcp-server-time`, a server of another project.

`art_mcp` invents the scenarios from the server's schemas and a table of zone names. The server is installed into an
environment of its own.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from art_examples.learning.task import IMITATION, Recipe, Task

from art_langgraph import GRPOConfig
from art_mcp import connect
from art_mcp.scenarios.generate import generate_scenarios
from art_mcp.specialization.agent import build_agent
from art_mcp.specialization.demonstrations import demonstrations
from art_mcp.specialization.settings import SYSTEM
from art_mcp.specialization.verify import solved, verify
from testbed.environments import environment

SERVER = "mcp-server-time"
ZONES = [
    "Africa/Cairo",
    "Africa/Lagos",
    "Africa/Nairobi",
    "America/Bogota",
    "America/Chicago",
    "America/Denver",
    "America/Lima",
    "America/New_York",
    "America/Toronto",
    "Asia/Bangkok",
    "Asia/Dubai",
    "Asia/Hong_Kong",
    "Asia/Jakarta",
    "Asia/Karachi",
    "Asia/Kolkata",
    "Asia/Manila",
    "Asia/Seoul",
    "Asia/Singapore",
    "Asia/Tokyo",
    "Australia/Perth",
    "Australia/Sydney",
    "Europe/Athens",
    "Europe/Berlin",
    "Europe/Dublin",
    "Europe/Helsinki",
    "Europe/Lisbon",
    "Europe/London",
    "Europe/Madrid",
    "Europe/Oslo",
    "Europe/Paris",
    "Europe/Rome",
    "Europe/Vienna",
    "Pacific/Auckland",
    "Pacific/Honolulu",
]
TIMES = [f"{hour:02}:{minute:02}" for hour in range(24) for minute in (0, 15, 30, 45)]
TABLES = {"timezone": ZONES, "source_timezone": ZONES, "target_timezone": ZONES, "time": TIMES}
"""Values of the parameters of the server's tools."""
SCENARIOS = 128
SHOWN = 48
"""Number of demonstrations."""
RECIPE = Recipe(
    warm_start=IMITATION,
    config=GRPOConfig(lr=2e-4),
    steps=4,
    groups_per_step=4,
)


def server_command() -> list[str]:
    """The command of the server. Its first call installs it."""
    return [str(environment(SERVER, SERVER) / SERVER), "--local-timezone", "UTC"]


@asynccontextmanager
async def time_zones(seed: int = 0) -> AsyncIterator[Task]:
    """The task for a seed. Held-out scenarios have arguments that are not trained."""
    async with connect(server_command()) as server:
        divided = await generate_scenarios(server, SCENARIOS, resources=TABLES, seed=0, progress=False)
        tools = await server.tools()
        training = random.Random(seed).sample(divided.train, len(divided.train))
        yield Task(
            name="time",
            graph=lambda model: build_agent(model, tools, SYSTEM),
            training=training[SHOWN:],
            held_out=divided.held_out,
            demonstrations=demonstrations(training[:SHOWN], tools, SYSTEM),
            reward=verify(),
            success=solved,
            max_tokens=96,
            recipe=RECIPE,
        )
