"""A trainer server and a small engine as processes of their own, which can be killed and started again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil

from testbed.ports import reserved_port
from tests.support.patience import PATIENCE
from trainer_server.common import Home


class Processes:
    """One home, one base model. `fault`, `engine_fault`: files that ART_FAULT names in the server and its trainer, and
    in the engine."""

    def __init__(self, home: Path, base: Path) -> None:
        self.home, self.base = Home(home), base
        self.fault, self.engine_fault = home.with_name("fault"), home.with_name("engine_fault")
        self.log = home.with_name(f"{home.name}.log")
        home.mkdir(parents=True, exist_ok=True)
        self.server: subprocess.Popen[bytes] | None = None
        self.engine: subprocess.Popen[bytes] | None = None
        self._engine_port, self._port = reserved_port(self), reserved_port(self)
        self._options: tuple[str, ...] = ()

    def start(self, *options: str) -> None:
        """Starts both. options: of `serve`."""
        self._options = options
        self.revive()
        self.until_ready()

    def revive(self) -> int:
        """Starts what is not running; returns how many had died."""
        died = 0
        if self.engine is None or self.engine.poll() is not None:
            died += self.engine is not None
            self.engine = self._run(self.engine_fault, "uvicorn", "--factory", "testbed.engine_app:make_app",
                                    "--port", str(self._engine_port), "--log-level", "error")  # fmt: skip
        if self.server is None or self.server.poll() is not None:
            died += self.server is not None
            self.server = self._run(
                self.fault, "trainer_server", "--home", str(self.home.root), "--model", str(self.base), "--engine-url",
                f"http://127.0.0.1:{self._engine_port}", "--port", str(self._port),
                "--no-trainer-low-priority", *self._options,
            )  # fmt: skip
        return died

    def until_ready(self) -> None:
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                if httpx.get(f"http://127.0.0.1:{self._port}/health").json()["ready"]:
                    return
            except httpx.TransportError:
                pass
            assert self.server is not None
            assert self.server.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.05)

    def http(self, timeout: float = PATIENCE) -> httpx.Client:
        headers = {"Authorization": f"Bearer {self.home.token.read_text().strip()}"}
        return httpx.Client(base_url=f"http://127.0.0.1:{self._port}", headers=headers, timeout=timeout)

    def job(self, body: dict[str, Any], policy: str = "p") -> tuple[dict[str, Any], int]:
        """A step, sent again until it is answered, to its end, whatever dies meanwhile; and how many processes did."""
        deadline = time.monotonic() + PATIENCE
        died = 0
        with self.http(timeout=10) as http:
            while True:
                assert time.monotonic() < deadline, self.log.read_text()
                died += self.revive()
                try:
                    answer = http.post(f"/api/policies/{policy}/steps", json=body)
                    assert answer.status_code == 202, answer.text
                    found = http.get(f"/api/jobs/{answer.json()['id']}", params={"wait": 1}).json()
                except httpx.TransportError:
                    time.sleep(0.05)
                    continue
                if found["status"] in ("succeeded", "failed"):
                    return found, died

    def kill(self, victim: str) -> None:
        """Kills `trainer`, `server` or `engine`, if it is there."""
        process = {"server": self.server, "engine": self.engine}.get(victim)
        if process is not None:
            process.kill()
            return
        try:
            trainer = psutil.Process(json.loads((self.home.root / "trainer.json").read_text())["pid"])
            if str(self.home.root) in trainer.cmdline():  # the number may be somebody else's by now
                trainer.kill()
        except (FileNotFoundError, psutil.NoSuchProcess):  # it is being started again
            pass

    def another(self, *options: str) -> Processes:
        """Another server on the same home and engine. It is started and not waited for."""
        other = Processes(self.home.root, self.base)
        other.log = self.log.with_name("another.log")
        other.engine, other._engine_port, other._options = self.engine, self._engine_port, options
        other.revive()
        other.engine = None
        return other

    def trainer_restarts(self) -> int:
        return (self.home.logs / "trainer.log").read_text().count("base model loaded in") - 1

    def stop(self) -> None:
        for process in (self.server, self.engine):
            if process is not None:
                process.terminate()
        for process in (self.server, self.engine):
            if process is not None:
                process.wait(PATIENCE)
        self.server = self.engine = None

    def _run(self, fault: Path, *line: str) -> subprocess.Popen[bytes]:
        env = {**os.environ, "ART_FAULT": str(fault)}
        with self.log.open("ab") as log:
            return subprocess.Popen([sys.executable, "-m", *line], env=env, stdout=log, stderr=log)


@contextmanager
def processes(home: Path, base: Path) -> Iterator[Processes]:
    made = Processes(home, base)
    try:
        yield made
    finally:
        made.stop()


def version_files(home: Home, policy: str, version: int) -> dict[str, bytes]:
    """What training goes on from, and what is served, to the bit."""
    directory = home.policies / policy / "versions" / str(version)
    names = ("adapter_model.safetensors", "optimizer.safetensors", "trainer.json")
    return {name: (directory / name).read_bytes() for name in names}
