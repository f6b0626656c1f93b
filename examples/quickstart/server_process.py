"""Starts a trainer server for a run, waits until it is ready, and stops it at the end of the run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from art_langgraph.client.proxies import ProxyTransport
from trainer_server.common import Connection, Home
from trainer_server.common.guard import end_group, guard_command
from trainer_server.wire import EngineError

START_TIMEOUT = 600.0
"""Seconds to wait for the server. The first start also downloads and converts the model."""


@contextmanager
def trainer_server(home: Path, log: Path, progress: Callable[[str], None], *arguments: str) -> Iterator[Connection]:
    """Runs `python -m trainer_server` on a free port until the block is left.

    The server runs under the guard, so that it ends even if this process is killed.

    Args:
        home: Directory for the state of the server.
        log: File to which the server's output is appended.
        progress: Called with each new last line of the log while the server starts.
        *arguments: Further arguments of the command.

    Yields:
        Address and token of the server, once it is ready.

    Raises:
        EngineError: The server ended while starting, or is not ready after START_TIMEOUT. The message names the log.
    """
    where = Home(home)
    where.server.unlink(missing_ok=True)
    others = ("ART_BASE_URL", "ART_API_KEY", "ART_HOME")
    environment = {name: value for name, value in os.environ.items() if name not in others}
    log.parent.mkdir(parents=True, exist_ok=True)
    command = guard_command([sys.executable, "-m", "trainer_server", "--home", str(home), "--port", "0", *arguments])
    with log.open("ab") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env=environment, start_new_session=True)
    try:
        yield _wait(process, where, log, progress)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            end_group(process.pid, grace=0.0)  # the guard alone would leave the server behind
            process.wait()


def _wait(process: subprocess.Popen[bytes], home: Home, log: Path, progress: Callable[[str], None]) -> Connection:
    """Waits until the server is ready. Raises EngineError if it ends or START_TIMEOUT passes."""
    with httpx.Client(timeout=5, transport=ProxyTransport()) as http:
        return _polled(http, process, home, log, progress)


def _polled(
    http: httpx.Client, process: subprocess.Popen[bytes], home: Home, log: Path, progress: Callable[[str], None]
) -> Connection:
    deadline = time.monotonic() + START_TIMEOUT
    last_line = ""
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise EngineError(f"the trainer server ended while starting. The end of {log}:\n{_tail(log)}")
        if (line := _tail(log, 1)) != last_line:
            last_line = line
            progress(line.partition(" INFO ")[2] or line)
        if home.server.exists() and home.token.exists():
            connection = Connection(json.loads(home.server.read_text())["url"], home.token.read_text().strip())
            try:
                headers = {"Authorization": f"Bearer {connection.api_key}"}
                health = http.get(f"{connection.url}/health", headers=headers).json()
            except httpx.HTTPError:
                health = {}
            if health.get("ready"):
                return connection
            if health.get("error"):
                raise EngineError(str(health["error"]))
        time.sleep(0.2)
    raise EngineError(f"the trainer server is not ready after {START_TIMEOUT:.0f} s; see {log}")


def _tail(log: Path, lines: int = 20) -> str:
    """The last lines of the log."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
