"""The real `langgraph dev`, in a process of its own, on a project that a test has written."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx

from art_langgraph import TrajectoryStore
from tests.support.patience import PATIENCE

BIN = Path(sys.executable).parent


@dataclass(slots=True)
class Dev:
    """A running `langgraph dev`, its project, and the store that it writes."""

    url: str
    project: Path

    @property
    def store(self) -> TrajectoryStore:
        return TrajectoryStore(self.project / "home" / "trajectories.sqlite")

    async def written(self) -> None:
        """Returns when all runs that have ended are in the store."""
        async with httpx.AsyncClient() as http:
            assert (await http.post(f"{self.url}/art/flush", timeout=PATIENCE)).json() == {"capture": True}

    def art(self, *words: str) -> str:
        """What a command of `art-langgraph` prints."""
        done = subprocess.run(
            [str(BIN / "art-langgraph"), *words],
            capture_output=True,
            text=True,
            timeout=120,
            env={**os.environ, "COLUMNS": "200", "PYTHONPATH": str(self.project)},
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@contextmanager
def langgraph_dev(project: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Runs `langgraph dev` in a project. Gives its address and its process."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    quiet = {"LANGGRAPH_CLI_NO_ANALYTICS": "1", "LANGGRAPH_NO_VERSION_CHECK": "true", "LANGSMITH_TRACING": "false"}
    log = project / "dev.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [str(BIN / "langgraph"), "dev", "--no-browser", "--no-reload", "--port", str(port)],
            cwd=project,
            env={**os.environ, **quiet},
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    url = f"http://127.0.0.1:{port}"
    deadline = time.monotonic() + PATIENCE
    try:
        while True:
            try:
                if httpx.get(f"{url}/ok", timeout=2).status_code == 200:
                    break
            except httpx.HTTPError:
                pass
            assert process.poll() is None, log.read_text()[-2000:]
            assert time.monotonic() < deadline, log.read_text()[-2000:]
            time.sleep(0.2)
        yield url, process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        process.wait(PATIENCE)
