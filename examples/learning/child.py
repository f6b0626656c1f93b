"""Programs of an example: one that runs beside it, such as a server, and a training command that runs to its end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from art_langgraph.client.proxies import ProxyTransport
from trainer_server.common.guard import end_group, guard_command
from trainer_server.wire import EngineError, TrainingError

START_TIMEOUT = 120.0
"""Seconds to wait until a program answers."""
NOTHING = "nothing to train on"
"""The last words of `art-langgraph train` where no runs can be compared. It ends with 1 then, as after an error."""


@contextmanager
def child(
    command: Sequence[str], health: str, log: Path, environment: Mapping[str, str], folder: Path
) -> Iterator[None]:
    """Runs a program until the block is left. It runs under the guard, so that it ends even if this process is killed.

    Args:
        command: The program and its arguments.
        health: The URL that it answers when it is ready.
        log: File for its output.
        environment: Environment variables, besides those of this process.
        folder: Its working directory.

    Raises:
        EngineError: It ended while starting, or does not answer in START_TIMEOUT. The message has the end of its log.
    """
    with log.open("wb") as out:
        environment = {**os.environ, **environment}
        process = subprocess.Popen(
            guard_command(list(command)), cwd=folder, env=environment, stdout=out, stderr=out, start_new_session=True
        )
    try:
        _wait(process, health, log)
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            end_group(process.pid, grace=0.0)
            process.wait()


def _wait(process: subprocess.Popen[bytes], health: str, log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT
    with httpx.Client(timeout=5, transport=ProxyTransport()) as http:
        while process.poll() is None and time.monotonic() < deadline:
            try:
                if http.get(health).is_success:
                    return
            except httpx.HTTPError:
                pass
            time.sleep(0.3)
    raise EngineError(f"{health} does not answer. The end of {log}:\n{log.read_text(errors='replace')[-2000:]}")


def trained(command: Sequence[str], environment: Mapping[str, str]) -> dict[str, Any] | None:
    """Takes a training step by a command, and passes on what it says.

    Args:
        command: `art-langgraph train` with `--json`.
        environment: Environment variables, besides those of this process.

    Returns:
        What the step came to, as JSON. None: there was nothing to learn, and no version was made.

    Raises:
        TrainingError: The command failed otherwise. The message has its error output.
    """
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True)
    sys.stderr.write(done.stderr)
    step: dict[str, Any] | None = json.loads(done.stdout.splitlines()[-1]) if done.stdout else None
    if done.returncode == 0:
        return step
    skipped = step is not None and step["metrics"].get("skipped")
    if done.returncode == 1 and (skipped or done.stderr.rstrip().endswith(NOTHING)):
        return None
    raise TrainingError(f"{' '.join(command[:2])} ended with {done.returncode}: {done.stderr.strip()}")
