"""The trainer server and the small engine as processes of their own, which can be killed and started again."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path

import httpx

from testbed.ports import reserved_port

KEY = "benchmark"
"""The server's own key, and the engine's."""
START = 180.0
"""Seconds that a process has to be ready."""
_LIBC, _PR_SET_PDEATHSIG = ctypes.CDLL(None), 1
"""The kernel ends a process whose starter has died, also where that was killed by SIGKILL."""
_ROOT = Path(__file__).parents[1]


class _Process(ABC):
    """One process on a port of its own, started again with the same line.

    Args:
        name: For messages.
        log: The file that gets its output.
        host: Where it listens.
    """

    def __init__(self, name: str, log: Path, host: str = "127.0.0.1") -> None:
        self.name, self.log, self.host = name, log, host
        self.port = reserved_port(self)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    @property
    def pid(self) -> int:
        if self._process is None:
            raise RuntimeError(f"the {self.name} was not started")
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def _run(self, line: Sequence[str], environment: Mapping[str, str]) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                line,
                cwd=_ROOT,
                env={**os.environ, **environment},
                stdout=log,
                stderr=log,
                preexec_fn=lambda: _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL),
            )

    @abstractmethod
    def ready(self) -> bool:
        """Whether it answers completions."""

    def until_ready(self, seconds: float = START) -> None:
        """Waits until it is ready.

        Raises:
            RuntimeError: It ended, or was not ready in time; with the end of its output.
        """
        deadline = time.monotonic() + seconds
        while not self.ready():
            if not self.running or time.monotonic() > deadline:
                said = self.log.read_text(errors="replace")[-3000:]
                raise RuntimeError(f"the {self.name} did not start in {seconds:.0f} s:\n{said}")
            time.sleep(0.05)

    def kill(self) -> None:
        """By SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(60)

    def stop(self) -> None:
        """By SIGTERM; returns when it has ended."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(60)


class EngineProcess(_Process):
    """The small engine (`testbed.engine_app`), or another one with the same options.

    Args:
        log: The file that gets its output.
        base: Name of the base model.
        module: The engine's module.
        options: More options of it.
    """

    def __init__(
        self, log: Path, base: str = "base", *, module: str = "testbed.engine_app", options: Sequence[str] = ()
    ) -> None:
        super().__init__("engine", log)
        self.base, self._module, self._options = base, module, tuple(options)

    def start(self) -> None:
        line = [sys.executable, "-m", self._module, str(self.port), "--base", self.base, "--key", KEY]
        self._run([*line, *self._options], {})

    def ready(self) -> bool:
        try:
            return httpx.get(f"{self.url}/health").status_code == 200
        except httpx.HTTPError:
            return False

    def forget(self) -> None:
        """Empties its lists of requests, which it would keep for ever."""
        httpx.post(f"{self.url}/state", json={"requests": [], "tokenized": []}, timeout=60).raise_for_status()


class CollectorProcess(_Process):
    """The collector of spans (`testbed.collector`).

    Args:
        log: The file that gets its output.
    """

    def __init__(self, log: Path) -> None:
        super().__init__("collector", log)

    def start(self) -> None:
        self._run([sys.executable, "-m", "testbed.collector", str(self.port)], {})

    def ready(self) -> bool:
        try:
            return httpx.get(f"{self.url}/health").status_code == 200
        except httpx.HTTPError:
            return False

    def taken(self) -> int:
        """Bytes of the spans that it was sent."""
        return int(httpx.get(f"{self.url}/health", timeout=60).json()["bytes"])


class ServerProcess(_Process):
    """The trainer server, with its trainer process.

    Args:
        home: Its home.
        model: Directory of the base model, or another value of `--model`.
        options: More options of `serve`.
        files: Limit of open files; None: as this process has it.
        environment: Environment variables besides those of this process.
        host: Where it listens.
        prefix: Words before its command line, such as those that have it run in a network namespace.
    """

    def __init__(
        self,
        home: Path,
        model: Path | str,
        *,
        options: Sequence[str] = (),
        files: int | None = None,
        environment: Mapping[str, str] | None = None,
        host: str = "127.0.0.1",
        prefix: Sequence[str] = (),
    ) -> None:
        super().__init__("server", home.with_name(f"{home.name}.log"), host)
        self._prefix = tuple(prefix)
        self.home, self._model, self._options = home, model, tuple(options)
        self._files, self._environment = files, dict(environment or {})

    def start(self) -> None:
        line = [sys.executable, "-m", "trainer_server", "--home", str(self.home), "--model", str(self._model)]
        line += ["--port", str(self.port), *self._options]
        if self.host != "127.0.0.1":
            line += ["--host", self.host, "--insecure"]
        if self._files is not None:
            line = ["sh", "-c", f'ulimit -n {self._files}; exec "$@"', "sh", *line]
        self._run([*self._prefix, *line], {"ART_API_KEY": KEY, "ART_ENGINE_API_KEY": KEY, **self._environment})

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {KEY}"}

    def ready(self) -> bool:
        try:
            return bool(httpx.get(f"{self.url}/health").json()["ready"])
        except (httpx.HTTPError, ValueError, KeyError):
            return False
