"""A child process of the server: guarded, logged, and swept when an earlier server was killed."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

from trainer_server.common.guard import GRACE, end_group, guard_command
from trainer_server.process.files import write_atomic


class Child:
    """Runs a command under the guard.

    Args:
        name: Names the log `logs/<name>.log` and the pid file `logs/<name>.pid`.
        command: The command and its arguments.
        logs: The directory of logs.
        env: Its environment variables, all of them; see `environment.inherited_environment`.
        low_priority: Whether the command gets only what others leave of the processor.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        logs: Path,
        env: Mapping[str, str],
        *,
        low_priority: bool = False,
    ) -> None:
        self.name = name
        self._low_priority = low_priority
        self.command = list(command)
        self.log = logs / f"{name}.log"
        self._pid_file = logs / f"{name}.pid"
        self._env = dict(env)
        self._process: asyncio.subprocess.Process | None = None
        self._begun = 0
        """Where its log begins in the file: what earlier processes wrote stands before."""

    async def start(self) -> None:
        """Starts it, after ending what an earlier server of this home left behind."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        await asyncio.to_thread(self._sweep)
        line = guard_command(self.command, low_priority=self._low_priority)
        with self.log.open("ab") as log:
            if kept := ", ".join(sorted(os.environ.keys() - self._env.keys())):
                log.write(f"variables of the server's environment that this process does not get: {kept}\n".encode())
                log.flush()  # before the process writes its first line
            self._begun = log.tell()
            self._process = await asyncio.create_subprocess_exec(
                *line, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log, env=self._env, start_new_session=True
            )
        write_atomic(self._pid_file, f"{self._process.pid} {_start_time(self._process.pid)}")

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    async def wait(self) -> int:
        """Waits for the end; returns the exit status."""
        assert self._process is not None
        return await self._process.wait()

    async def stop(self) -> None:
        """Ends the whole process group and returns when it is gone."""
        if self._process is None:
            return
        if self.running:
            self._process.send_signal(signal.SIGTERM)
            try:
                await asyncio.wait_for(self._process.wait(), GRACE + 5)
            except TimeoutError:
                pass
        await asyncio.to_thread(end_group, self._process.pid, grace=0.0)
        await self._process.wait()
        self._pid_file.unlink(missing_ok=True)

    def tail(self, lines: int = 30) -> str:
        """The end of its log, since it was started last."""
        if not self.log.exists():
            return ""
        with self.log.open("rb") as file:
            size = self.log.stat().st_size
            begun = self._begun if self._begun <= size else 0  # the file began anew meanwhile
            file.seek(max(begun, size - 20_000))
            return "\n".join(file.read().decode(errors="replace").splitlines()[-lines:])

    def _sweep(self) -> None:
        if not self._pid_file.exists():
            return
        pid, _, started = self._pid_file.read_text().partition(" ")
        # The group may outlive its leader; a leader with another start time is somebody else's process.
        if _start_time(int(pid)) in (started, ""):
            end_group(int(pid), grace=2.0)
        self._pid_file.unlink(missing_ok=True)


def _start_time(pid: int) -> str:
    """Start time of a process in clock ticks since boot, as text; empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""
