"""A program that starts again in each worker: nothing guards what it does."""

from __future__ import annotations

import asyncio

from art_langgraph import rollout


async def agent() -> str:
    return "ended"


try:
    print(asyncio.run(rollout(agent, "x", executor="processes")).output)
except Exception as error:
    print(f"{type(error).__name__}: {error}")
    raise
