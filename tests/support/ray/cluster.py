"""A Ray cluster of two machines, which are network namespaces, in an environment that has Ray besides our packages."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from testbed.environments import environment
from testbed.link import Link, Namespace
from tests.support.patience import PATIENCE

ROOT = Path(__file__).parents[3]
EXTRA = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["ray"]
PORT = 6379
CPUS = 1
"""Of each machine."""
_MEMORY = 80 * 2**20
"""Bytes of the object store of a machine; Ray takes no fewer than 75 MB."""


def ray_environment() -> Path:
    """The `bin` directory of an environment with Ray; all else is that of the tests. Skips where Ray is not to be
    had."""
    try:
        return environment("ray", *EXTRA, overlay=True, compiled=True)
    except RuntimeError as error:
        pytest.skip(f"Ray cannot be installed here: {str(error).splitlines()[-1]}")


class RayCluster:
    """A head node and a worker node.

    Args:
        link: The line between them. The head node is at its near end, the worker node at its far end.
        binaries: Of the environment with Ray.
        directory: Ray's session directory; sockets in it must have short paths.
    """

    def __init__(self, link: Link, binaries: Path, directory: Path) -> None:
        self.link, self.python, self._directory = link, binaries / "python", directory
        self.address = f"{link.near_host}:{PORT}"
        self.environment = {
            **os.environ,
            "PATH": f"{binaries}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "PYTHONDONTWRITEBYTECODE": "",  # each worker would compile all that it imports
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_ADDRESS": self.address,
            # By default it takes a quarter of a minute until a dead node is known to be dead.
            "RAY_health_check_initial_delay_ms": "1000",
            "RAY_health_check_period_ms": "500",
            "RAY_health_check_failure_threshold": "3",
        }
        """Of programs that use the cluster."""
        self._nodes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Begins to start both nodes."""
        head = (
            "--head",
            f"--port={PORT}",
            "--include-dashboard=false",
            f"--temp-dir={self._directory}",
            "--no-monitor",
        )
        self._start(self.link.near, self.link.near_host, *head)
        self._until(lambda: (self._directory / "session_latest").exists())
        self._start(self.link.far, self.link.far_host, f"--address={self.address}")

    def _start(self, machine: Namespace, host: str, *words: str) -> None:
        options = (f"--node-ip-address={host}", f"--num-cpus={CPUS}", f"--object-store-memory={_MEMORY}", "--block")
        options += ("--include-log-monitor=false",)
        environment = {name: value for name, value in self.environment.items() if name != "RAY_ADDRESS"}
        log = self._directory / f"{host}.log"
        with log.open("ab") as out:
            line = [*machine.prefix, str(self.python.with_name("ray")), "start", *words, *options]
            self._nodes.append(subprocess.Popen(line, env=environment, stdout=out, stderr=out, cwd="/"))

    def stop(self) -> None:
        """Ends all processes of both machines."""
        for machine in (self.link.near, self.link.far):
            kill_machine(self.link, machine)
        for node in self._nodes:
            node.wait(PATIENCE)

    def _until(self, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not holds():
            assert time.monotonic() < deadline, self.said()
            time.sleep(0.05)

    def said(self) -> str:
        """What the nodes said."""
        return "\n".join(path.read_text(errors="replace")[-2000:] for path in self._directory.glob("*.log"))


def kill_machine(link: Link, machine: Namespace) -> None:
    """Ends all processes at one end of a line by SIGKILL, as a loss of power would."""
    deadline = time.monotonic() + PATIENCE
    while found := link.processes(machine):
        assert time.monotonic() < deadline
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        time.sleep(0.05)


@contextmanager
def ray_cluster(link: Link) -> Iterator[RayCluster]:
    """A cluster whose head runs, and whose worker node begins to."""
    directory = Path(tempfile.mkdtemp(prefix="art-ray-", dir="/tmp"))
    cluster = RayCluster(link, ray_environment(), directory)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(directory, ignore_errors=True)
