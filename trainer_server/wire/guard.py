"""Runs a command that must not outlive its starter: `python guard.py [--low-priority] -- COMMAND …`, see `guarded`.

Server and client both start processes and both need it, so it is here. It imports the standard library only and runs as
a file of its own: a guard starts in milliseconds and costs a few MB.

The guard leads a process group of its own, so that Ctrl-C in a terminal does not reach the command before the server
has said so. When the starter dies, even by SIGKILL, or SIGTERM comes, the whole group is ended: TERM, then KILL. When
the command dies, what it left behind in the group is ended too, and its exit status is passed on.

With --low-priority the command gets what others leave of the processor, and all of it when they are idle.
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

GRACE = 10.0
"""Seconds between TERM and KILL."""
_NICE = 15


def guarded(command: Sequence[str], *, low_priority: bool = False) -> list[str]:
    """The command line that runs a command under the guard.

    Args:
        command: The command and its arguments.
        low_priority: Whether the command gets only what others leave of the processor.
    """
    options = ["--low-priority"] if low_priority else []
    return [sys.executable, "-I", "-S", __file__, *options, "--", *command]


def members(group: int) -> list[int]:
    """Living processes of a process group, from /proc; zombies do not count."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            state, _, pgrp = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
        except OSError:  # gone meanwhile
            continue
        if int(pgrp) == group and state != "Z":
            found.append(int(entry.name))
    return found


def end_group(group: int, *, keep: int | None = None, grace: float = GRACE) -> None:
    """Ends every process of a group but `keep`: TERM, and KILL for those that are there after `grace` seconds."""
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
    with suppress(OSError):  # where each session is a group of its own for the scheduler, that is what is weighed
        Path("/proc/self/autogroup").write_text(str(_NICE))


def main(command: list[str], *, low_priority: bool = False) -> int:
    starter = os.getppid()
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
    return status if status >= 0 else 128 - status  # as shells have it: 137 is SIGKILL


if __name__ == "__main__":
    at = sys.argv.index("--")
    sys.exit(main(sys.argv[at + 1 :], low_priority="--low-priority" in sys.argv[1:at]))
