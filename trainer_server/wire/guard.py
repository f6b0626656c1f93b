"""Runs a command that must not outlive its starter: `python guard.py STARTER [--low-priority] -- COMMAND …`.

Server and client both start processes, so the guard is in this package. It imports the standard library only and runs
as a script: it starts in milliseconds and takes a few MB.

The guard leads its own process group, so that Ctrl-C in a terminal does not reach the command; the server decides when
it ends. The guard ends the whole group with TERM, then KILL, when the starter dies, even by SIGKILL, or when the guard
gets SIGTERM. A command whose starter died before the guard ran is not started. When the command ends, the guard ends
the remaining processes of the group, and returns the command's exit status.

With --low-priority other processes come first: the command gets what they leave, or a quarter if they leave nothing.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType

assert sys.platform == "linux"  # it reads /proc

GRACE = 10.0
"""Seconds between TERM and KILL."""
_NICE = 5
"""Niceness of a command with low priority: beside one other busy process, a quarter of a core is its own."""


def guarded(command: Sequence[str], *, low_priority: bool = False) -> list[str]:
    """The command line that runs a command under the guard. Only the process that asks for it can use it.

    Args:
        command: The command and its arguments.
        low_priority: Whether other processes come first.
    """
    options = ["--low-priority"] if low_priority else []
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), *options, "--", *command]


def members(group: int) -> list[int]:
    """Ids of the living processes of a process group, from /proc. Zombies do not count."""
    pids = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            state, _, pgrp = (entry / "stat").read_bytes().rpartition(b")")[2].decode().split()[:3]
        except OSError:  # the process ended meanwhile
            continue
        if int(pgrp) == group and state != "Z":
            pids.append(int(entry.name))
    return pids


def end_group(group: int, *, keep: int | None = None, grace: float = GRACE) -> None:
    """Ends the processes of a group: with TERM, and after some time with KILL.

    Args:
        group: Id of the process group.
        keep: Id of a process that is not ended; None: all are.
        grace: Seconds between TERM and KILL.
    """
    deadline = time.monotonic() + grace
    sign = signal.SIGTERM
    while rest := [pid for pid in members(group) if pid != keep]:
        if sign == signal.SIGTERM or time.monotonic() > deadline:
            for pid in rest:
                try:
                    os.kill(pid, sign)
                except ProcessLookupError:
                    pass
            sign = signal.SIGKILL
        time.sleep(0.05)


def _low_priority() -> None:
    os.nice(_NICE)
    with suppress(OSError):  # where the scheduler groups processes by session, the group's niceness counts
        Path("/proc/self/autogroup").write_text(str(_NICE), encoding="utf-8")


def main(command: list[str], starter: int, *, low_priority: bool = False) -> int:
    """Runs a command under the guard, in this process. Does not start it if the starter is gone already.

    Args:
        command: The command and its arguments.
        starter: Id of the process that started this one. Its own look at its parent could come after the parent's
            death, and find another process.
        low_priority: See `guarded`.

    Returns:
        The command's exit status, 128 + n if signal n ended it; 0 if the guard ended it.
    """
    if os.getppid() != starter:
        return 0
    if os.getpgrp() != os.getpid():
        os.setsid()
    if low_priority:
        _low_priority()
    stopping = False

    def stop(_signal: int, _frame: FrameType | None) -> None:
        nonlocal stopping
        stopping = True

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    child = subprocess.Popen(command)
    while child.poll() is None and not stopping and os.getppid() == starter:
        try:
            child.wait(0.2)
        except subprocess.TimeoutExpired:
            pass
    status = child.poll()
    end_group(os.getpgrp(), keep=os.getpid())
    if status is None:
        return 0
    return status if status >= 0 else 128 - status  # as shells do: 137 is SIGKILL


if __name__ == "__main__":
    at = sys.argv.index("--")
    sys.exit(main(sys.argv[at + 1 :], int(sys.argv[1]), low_priority="--low-priority" in sys.argv[2:at]))
