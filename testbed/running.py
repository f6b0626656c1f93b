"""A server of any kind as a process of its own, while a block runs."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx

START_SECONDS = 600.0
"""Seconds that a server has to be ready."""


@contextmanager
def running(line: Sequence[str], env: Mapping[str, str], log: Path, url: str) -> Iterator[None]:
    """A server process, from when it is ready until the block is left.

    Args:
        line: Its command line.
        env: Environment variables besides those of this process.
        log: The file that gets its output.
        url: Where it answers `/health`: with status 200, and with `"ready": true` if it says so in JSON.

    Raises:
        RuntimeError: It ended, or was not ready in START_SECONDS; with the end of its output.
    """
    with log.open("wb") as out:
        child = subprocess.Popen(line, env={**os.environ, **env}, stdout=out, stderr=out)
    try:
        deadline = time.monotonic() + START_SECONDS
        while not _ready(url):
            if child.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{url} did not start:\n{log.read_text()[-3000:]}")
            time.sleep(0.5)
        yield
    finally:
        child.terminate()
        child.wait(60)


def _ready(url: str) -> bool:
    try:
        answer = httpx.get(f"{url}/health", timeout=5)
        return answer.status_code == 200 and (not answer.content or bool(answer.json().get("ready", True)))
    except (httpx.HTTPError, ValueError):
        return False
