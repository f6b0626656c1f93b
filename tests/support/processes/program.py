"""A program with rollouts that wait, for a test to interrupt or to kill: `python program.py PLACE`."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from art_langgraph import ProcessExecutor, Scenario, gather


async def agent(scenario: Scenario) -> None:
    """Says that it began, and that it ended."""
    place = Path(sys.argv[1])
    (place / f"began.{os.getpid()}").touch()
    try:
        await asyncio.Event().wait()
    finally:
        (place / f"ended.{os.getpid()}").touch()


if __name__ == "__main__":
    asyncio.run(gather(agent, ["x"], 2, executor=ProcessExecutor(2), progress=False))
