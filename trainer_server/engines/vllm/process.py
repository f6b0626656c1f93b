"""The process of a vLLM that is started here: its socket, how long it may leave checks unanswered, why it ended."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import stat
import tempfile
import time
from pathlib import Path

from trainer_server.engines.base import EngineSettings
from trainer_server.engines.served_model import ServedModel
from trainer_server.engines.vllm.command import (
    child_environment,
    command,
    environment,
    traces_endpoint,
    traces_environment,
)
from trainer_server.engines.vllm.parsers import Parsers
from trainer_server.process.child import Child
from trainer_server.wire import EngineError

PATIENCE = 60.0
"""Seconds for which an engine may leave health checks unanswered while its process runs. A front end that answers
hundreds of requests is slow to answer a check too, and a restart would break all of them off."""
PATIENT_CHECKS = 5
"""Health checks that must fail in that time, one after another."""
_LOG_LINES = 1000
"""Lines of vLLM's log in which the cause of its end is looked for."""
_ERROR = re.compile(r"^(?:\([^)]*\) )?(?:ERROR [^\]]*\] )?((?:\w+\.)*\w+(?:Error|Exception)): +(\S.*)$")
"""A traceback's last line, as `ValueError: …`, perhaps after the process's name and the log's time and place."""
_PHASES = (
    ("weights", "Starting to load model"),
    ("compilation", "Dynamo bytecode transform time"),
    ("CUDA graphs", "Capturing CUDA graphs"),
)
"""Phases of a start on a GPU, and the words of vLLM's log with which each begins."""
_FOLLOWING = ("initialization failed", "root cause above", "EngineCore encountered an issue")
"""Words of errors that follow from another one."""


class VLLMProcess(Child):
    """A vLLM that listens on a Unix socket which only its own user can reach.

    Its processes talk to one another on further sockets in the same directory (`VLLM_RPC_BASE_PATH`), which vLLM names
    itself, and does not remove when it is killed.

    Args:
        settings: Options of `serve`.
        key: The key that its requests must carry.
        parsers: Its parsers of tool calls and thoughts.
        name: Name of the log file.
        gpus: Value of CUDA_VISIBLE_DEVICES; None: not set, so that all GPUs are used.

    Raises:
        EngineError: vLLM is not installed.
    """

    def __init__(self, settings: EngineSettings, key: str, parsers: Parsers, *, name: str, gpus: str | None) -> None:
        self.socket = _new_socket()
        traces = traces_endpoint(settings.home.cache)
        variables = {
            **child_environment(settings.env),
            **environment(settings, key, gpus),
            **traces_environment(traces),
            "VLLM_RPC_BASE_PATH": str(self.socket.parent),
        }
        line = command(settings, self.socket, parsers=parsers, traces=traces)
        super().__init__(name, line, settings.home.logs, variables)
        self._has_directory = False
        """Whether the directory of the socket was made here. Otherwise it may be somebody else's."""

    async def start(self) -> None:
        prepare_socket(self.socket)
        self._has_directory = True
        await super().start()

    async def close(self) -> None:
        """Ends vLLM for good. `stop` alone keeps the directory of the socket, so that nobody takes its place before a
        restart."""
        await self.stop()
        if self._has_directory:
            shutil.rmtree(self.socket.parent, ignore_errors=True)


class StartPhases:
    """The phases of a start of vLLM, which take minutes on a GPU where nothing is in its caches.

    Args:
        child: That starts; None: it runs elsewhere, and there is no log.
    """

    def __init__(self, child: Child | None) -> None:
        self._child = child
        self._begin: dict[str, float] = {}
        self._next_look = 0.0

    def advance(self) -> str | None:
        """The phase that has begun since the last look into the log, once a second; None: none has."""
        if self._child is None or time.monotonic() < self._next_look:
            return None
        self._next_look = time.monotonic() + 1.0
        log = self._child.tail(_LOG_LINES)
        begun = [name for name, words in _PHASES if words in log and name not in self._begin]
        for name in begun:
            self._begin[name] = time.monotonic()
        return begun[-1] if begun else None

    def summary(self) -> str:
        """The seconds of each phase until now; empty where vLLM compiles nothing, as on CPUs."""
        if len(self._begin) < 2:
            return ""
        ends = [*self._begin.values(), time.monotonic()][1:]
        parts = (f"{name} {end - begin:.0f} s" for (name, begin), end in zip(self._begin.items(), ends, strict=True))
        return f": {', '.join(parts)}"


class HealthFailures:
    """Counts health checks that failed one after another, and for how long they have."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._checks = 0

    def record(self) -> None:
        """Counts one more failed check."""
        self._since = time.monotonic() if self._since is None else self._since
        self._checks += 1

    @property
    def too_many(self) -> bool:
        """Whether the engine has been silent for too long."""
        silent = 0.0 if self._since is None else time.monotonic() - self._since
        return self._checks >= PATIENT_CHECKS and silent >= PATIENCE

    def clear(self) -> None:
        """Forgets the failed checks: the engine has answered."""
        self._since, self._checks = None, 0


def crash_reason(log: str) -> str | None:
    """The first error in a log that does not follow from another one; None if there is none.

    vLLM runs in several processes, and the last error in its log only says that another process failed.

    Args:
        log: The log since vLLM was started, or the end of it.
    """
    for line in log.splitlines():
        if (error := _ERROR.match(line)) and not any(words in line for words in _FOLLOWING):
            return f"{error[1]}: {error[2]}"
    return None


def crash_phrase(child: Child) -> str:
    """The reason in a child's log, as the end of a phrase, `: ValueError: …`; empty: the log has none."""
    return f": {reason}" if (reason := crash_reason(child.tail(_LOG_LINES))) else ""


def start_failure(child: Child, base: ServedModel) -> str:
    """The message about a vLLM that ended before it was ready: the reason, a remedy if there is one, the log's end."""
    hint = base.code_hint(child.tail(_LOG_LINES))
    return f"vLLM ended while starting{crash_phrase(child)}{hint}. The end of {child.log}:\n{child.tail()}"


def _new_socket() -> Path:
    """The path of a new Unix socket. Its directory does not exist yet."""
    parent = Path(tempfile.gettempdir())
    if len(os.fsencode(parent)) > 40:  # the path of a socket has 107 bytes at most, and vLLM's names have 36
        parent = Path("/tmp")
    return parent / f"art-engine-{secrets.token_hex(8)}" / "vllm.sock"


def prepare_socket(socket: Path) -> None:
    """Makes the directory of a socket, and removes the sockets that an earlier process left there.

    Only this user may enter the directory. So whoever answers on the socket was started by this user, and no process
    of another user can get vLLM's key, or answer in its place.

    Raises:
        EngineError: The directory belongs to somebody else.
    """
    directory = socket.parent
    directory.mkdir(mode=0o700, exist_ok=True)
    facts = directory.lstat()
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.getuid() or stat.S_IMODE(facts.st_mode) & 0o077:
        raise EngineError(f"vLLM cannot listen in {directory}: other users can write there, or own it; remove it")
    for path in directory.iterdir():
        path.unlink()
