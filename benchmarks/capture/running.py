"""Processes that are measured, and the time that they take."""

from __future__ import annotations

import asyncio
import os
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx


@contextmanager
def running(*command: str, env: dict[str, str] | None = None) -> Iterator[None]:
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **(env or {})})
        try:
            yield
        finally:
            process.terminate()
            process.wait(30)


def wait_for(url: str, ready: Callable[[httpx.Response], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while True:
        try:
            if ready(httpx.get(url, timeout=2)):
                return
        except httpx.HTTPError:
            pass
        if time.monotonic() > deadline:
            raise TimeoutError(f"{url} is not ready after {seconds:.0f} s")
        time.sleep(0.1)


async def timed(work: Callable[[int], Awaitable[Any]], count: int, concurrency: int) -> float:
    """Seconds for `count` calls of work, at most `concurrency` at once."""
    limit = asyncio.Semaphore(concurrency)

    async def one(number: int) -> None:
        async with limit:
            await work(number)

    started = time.perf_counter()
    await asyncio.gather(*(one(number) for number in range(count)))
    return time.perf_counter() - started
