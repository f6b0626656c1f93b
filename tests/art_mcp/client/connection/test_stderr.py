"""What a server writes to its stderr."""

from __future__ import annotations

import asyncio
import sys
import threading

import pytest

from art_mcp.client.connection.stderr import MAX_TEXT, read_stderr


async def test_the_end_is_kept_where_the_event_loop_cannot_wait_for_pipes(monkeypatch: pytest.MonkeyPatch) -> None:
    """As that of Windows."""
    monkeypatch.setattr(type(asyncio.get_running_loop()), "connect_read_pipe", None)
    before = threading.active_count()
    async with read_stderr() as stderr:
        print("x" * 100_000, "the last line", "", sep="\n", file=stderr.file, flush=True)
    assert stderr.last_line() == "the last line"
    assert len(stderr._end) == MAX_TEXT
    assert threading.active_count() <= before + 1  # that of asyncio.to_thread


async def test_a_process_that_holds_the_pipe_does_not_hold_up_the_end() -> None:
    async with read_stderr() as stderr:
        left = await asyncio.create_subprocess_exec(
            sys.executable, "-c", "import time; time.sleep(60)", stderr=stderr.file
        )
    assert left.returncode is None
    left.kill()
    await left.wait()
