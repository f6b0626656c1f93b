"""Copies with running servers that are made ahead."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from art_mcp.client.connection.sdk import Stdio
from art_mcp.client.copies.pool import Pool
from art_mcp.worlds.world import Copy, World
from tests.support.patience import PATIENCE


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


async def test_a_copy_is_removed_after_a_start_that_was_cancelled_has_written_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go = threading.Event(), threading.Event()

    def written(copy: Copy, env: object) -> dict[str, str]:
        begun.set()
        assert go.wait(PATIENCE)
        (copy.root / "git").mkdir(parents=True)
        return {}

    monkeypatch.setattr(Copy, "git_environment", written)
    (tmp_path / "notes").mkdir()
    world = World(tmp_path / "notes", scratch=tmp_path / "scratch")
    world.open()
    pool = Pool(world, Stdio(("server",)), (60.0, 60.0), lambda: None)
    start = asyncio.create_task(pool.take(refill=False))
    assert await asyncio.to_thread(begun.wait, PATIENCE)
    start.cancel()
    await asyncio.wait([start], timeout=0.5)
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await start
    await asyncio.sleep(0.1)  # a thread that was not waited for writes now
    assert world.in_use == 0
    assert not [*(tmp_path / "scratch").glob("*/*/git")]
    world.close()
