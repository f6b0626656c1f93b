"""Checks the written requests to a server: `python -m benchmarks.wordings NAME [NAME …] [-v]`."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from pathlib import Path

from art_mcp import MCPScenario
from art_mcp.scenarios.scenario_set import DroppedTask
from benchmarks.specialize import connected
from benchmarks.wordings.requests import SEED, SERVERS_OF_REQUESTS, foreign_scenarios, summary


async def check(name: str) -> tuple[list[MCPScenario], list[DroppedTask]]:
    """Executes the requests to a server in a world of its own.

    Args:
        name: Name of the server.

    Returns:
        As `foreign_scenarios`.
    """
    with tempfile.TemporaryDirectory() as where:
        async with connected(SERVERS_OF_REQUESTS[name], Path(where), SEED) as server:
            return await foreign_scenarios(server, name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="+", choices=list(SERVERS_OF_REQUESTS), metavar="NAME")
    parser.add_argument("-v", "--verbose", action="store_true", help="print each request with what solves it")
    options = parser.parse_args()
    failures = 0
    for name in options.names:
        scenarios, dropped = asyncio.run(check(name))
        print(f"{name}: {len(scenarios)} requests work, {len(dropped)} do not")
        for line in summary(scenarios) if options.verbose else ():
            print(json.dumps(line, ensure_ascii=False))
        for record in dropped:
            print(f"  {record.kind}: {record.task!r}: {record.reason}")
        failures += len(dropped)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
