"""Copies with running servers that are made ahead."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from art_mcp.client.connection.sdk import Stdio
from art_mcp.client.copies.pool import Pool
from art_mcp.worlds.world import World


async def test_a_start_ahead_outlives_the_run_that_waited_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = asyncio.Event()

    async def made(pool: Pool) -> str:
        await go.wait()
        return "ready"

    monkeypatch.setattr(Pool, "_make", made)
    pool = Pool(World(tmp_path), Stdio(("server",)), (60.0, 60.0), lambda: None)
    first = asyncio.create_task(pool.take())
    await asyncio.sleep(0)  # two more are made now
    waiting = asyncio.create_task(pool.take(refill=False))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    go.set()
    assert [await first, *[await pool.take(refill=False) for _ in range(2)]] == ["ready"] * 3
