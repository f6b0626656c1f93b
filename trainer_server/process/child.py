"""Child processes of the server: their environment, their logs, and the guard that ends them with the server.

vLLM and the trainer import code of many projects, and the keys of the server and of judges are not theirs. So a child
gets the environment variables that it needs, and no secret reaches it by accident.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from trainer_server.common.guard import GRACE, end_group, guard_command
from trainer_server.process.files import write_atomic
from trainer_server.wire import ConfigError

INHERITED = (
    # the system
    "PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "LC_*", "TZ", "TMPDIR", "TMP", "TEMP", "XDG_*",
    "LD_LIBRARY_PATH", "LD_PRELOAD",
    # the network
    "[Hh][Tt][Tt][Pp]_[Pp][Rr][Oo][Xx][Yy]", "[Hh][Tt][Tt][Pp][Ss]_[Pp][Rr][Oo][Xx][Yy]",
    "[Nn][Oo]_[Pp][Rr][Oo][Xx][Yy]", "[Aa][Ll][Ll]_[Pp][Rr][Oo][Xx][Yy]",
    "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE",
    # Python, and compilers of kernels
    "PYTHON*", "VIRTUAL_ENV", "CC", "CXX", "CPATH", "LIBRARY_PATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH",
    # processors, GPUs, and their libraries
    "OMP_*", "GOMP_*", "KMP_*", "MKL_*", "OPENBLAS_*", "DNNL_*", "ONEDNN_*", "MALLOC_*", "ATEN_*",
    "CUDA_*", "CUDNN_*", "CUBLAS_*", "NVIDIA_*", "NCCL_*", "GLOO_*", "UCX_*", "TORCH*", "PYTORCH_*", "TRITON_*",
    # models
    "HF_*", "HUGGINGFACE_*", "TRANSFORMERS_*", "TOKENIZERS_*", "SAFETENSORS_*",
    "ACCELERATE_*", "FSDP_*", "BNB_*",
    # our own, none of them secret
    "ART_CPU_LORA", "ART_KERNELS", "ART_PRECISION", "ART_START", "ART_FAULT",
)  # fmt: skip
"""Names that every child gets, as patterns of fnmatch."""
SECRET = ("*_TOKEN", "*_KEY", "*_SECRET", "*_PASSWORD")
"""Names that no child gets by a pattern. Children need no token of the hub: the model is on this machine."""
MOST_BYTES = 64 * 2**20
"""Size of a log after which it begins anew."""
_OLDER = ".1.log"


class Child:
    """Runs a command under the guard.

    Args:
        name: Names the log `logs/<name>.log` and the pid file `logs/<name>.pid`.
        command: The command and its arguments.
        logs: The directory of logs.
        env: Its environment variables, all of them; see `inherited_environment`.
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
        self._log_start = 0
        """Where its log begins in the file: what earlier processes wrote stands before."""

    async def start(self) -> None:
        """Starts it, after ending what an earlier server of this home left behind."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        await asyncio.to_thread(self._sweep)
        line = guard_command(self.command, low_priority=self._low_priority)
        with self.log.open("ab") as log:
            if others := ", ".join(sorted(os.environ.keys() - self._env.keys())):
                log.write(f"variables of the server's environment that this process does not get: {others}\n".encode())
                log.flush()  # before the process writes its first line
            self._log_start = log.tell()
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

    async def close(self) -> None:
        """Ends the process for good: it is not started again."""
        await self.stop()

    def tail(self, lines: int = 30) -> str:
        """The end of its log, since it was started last."""
        if not self.log.exists():
            return ""
        with self.log.open("rb") as file:
            size = self.log.stat().st_size
            start = self._log_start if self._log_start <= size else 0  # the file began anew meanwhile
            file.seek(max(start, size - 20_000))
            return "\n".join(file.read().decode(errors="replace").splitlines()[-lines:])

    def _sweep(self) -> None:
        if not self._pid_file.exists():
            return
        pid, _, start_time = self._pid_file.read_text().partition(" ")
        # The group may outlive its leader; a leader with another start time is somebody else's process.
        if _start_time(int(pid)) in (start_time, ""):
            end_group(int(pid), grace=2.0)
        self._pid_file.unlink(missing_ok=True)


def _start_time(pid: int) -> str:
    """Start time of a process in clock ticks since boot, as text; empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""


def inherited_environment(names: Iterable[str] = (), patterns: Collection[str] = ()) -> dict[str, str]:
    """The part of this process's environment that a child gets.

    Args:
        names: Further variables that the user wants it to have.
        patterns: Further patterns, of what this kind of child needs.
    """
    allowed = (*INHERITED, *patterns)
    explicit = set(names)
    return {
        name: value
        for name, value in os.environ.items()
        if name in explicit or (_matches(name, allowed) and not _matches(name, SECRET))
    }


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def check_present(option: str, names: Iterable[str]) -> None:
    """Raises ConfigError for a variable that is not set, or a name that cannot be one."""
    for name in names:
        if "=" in name:
            raise ConfigError(
                f"{option} {name.partition('=')[0]}=…: give the name only. Others can read command lines; the value is "
                "taken from the server's environment"
            )
        if name not in os.environ:
            raise ConfigError(f"{option} {name}: the server's environment has no such variable")


def rotate_logs(directory: Path, days: float, most_bytes: int = MOST_BYTES) -> None:
    """Begins logs of child processes anew that are too large, and deletes what is older.

    `trainer.log` becomes `trainer.1.log`, in place of an earlier one. A child has its log open for appending, so the
    file is copied and emptied; a line that it writes in between is lost.

    Args:
        directory: Of the logs.
        days: Days after which a log that nothing was added to is deleted, if its process has ended.
        most_bytes: Size of a log after which it begins anew.

    Raises:
        OSError: A file could not be copied or deleted.
    """
    before = time.time() - days * 86400
    for log in sorted(directory.glob("*.log")):
        if log.stat().st_mtime < before and not log.with_suffix(".pid").exists():
            log.unlink()
        elif log.stat().st_size > most_bytes and not log.name.endswith(_OLDER):
            aside = log.with_suffix(".new")
            shutil.copyfile(log, aside)
            os.replace(aside, log.with_suffix(_OLDER))
            os.truncate(log, 0)
