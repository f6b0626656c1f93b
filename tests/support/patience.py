"""How long tests wait for what should happen at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

PATIENCE = 240.0
"""Seconds. No test that passes waits that long: the bound only ends one that would hang, on the slowest of machines."""


async def until(holds: Callable[[], object]) -> None:
    """Waits until a condition holds.

    Raises:
        TimeoutError: It did not hold in time.
    """
    async with asyncio.timeout(PATIENCE):
        while not holds():
            await asyncio.sleep(0.01)
