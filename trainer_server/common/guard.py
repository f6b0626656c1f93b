"""Runs a command that must not outlive its starter: `python guard.py STARTER GRACE [--low-priority] -- COMMAND …`.

Server and client both start processes, so both may import this file. It imports the standard library only and runs
as a script: it starts in milliseconds and takes a few MB.

The guard leads its own process group, so that Ctrl-C in a terminal does not reach the command; the server decides when
it ends. The guard ends the whole group with TERM, then KILL, when the starter dies, even by SIGKILL, or when the guard
gets SIGTERM. A command whose starter died before the guard ran is not started. When the command ends, the guard ends
the remaining processes of the group, and returns the command's exit status.

Processes that left the group (`setsid`, daemons) end with it: the guard is the parent of all descendants whose own
parent has ended.

With --low-priority other processes come first: the command gets what they leave, or a quarter if they leave nothing.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType

assert sys.platform == "linux"  # it reads /proc

GRACE = 10.0
"""Seconds between TERM and KILL."""
_PR_SET_CHILD_SUBREAPER = 36
_NICE = 5
"""Niceness of a command with low priority: beside one other busy process, a quarter of a core is its own."""


def guard_command(command: Sequence[str], *, low_priority: bool = False, grace: float = GRACE) -> list[str]:
    """The command line that runs a command under the guard. Only the process that asks for it can use it.

    Args:
        command: The command and its arguments.
        low_priority: Whether other processes come first.
        grace: Seconds between TERM and KILL.
    """
    options = ["--low-priority"] if low_priority else []
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), str(grace), *options, "--", *command]


def members(group: int) -> list[int]:
    """Ids of the living processes of a process group, from /proc. Zombies do not count."""
    return [pid for pid, (_, own) in _processes().items() if own == group]


def descendants(ancestor: int) -> list[int]:
    """Ids of the living processes that a process has started, directly or not, from /proc."""
    processes = _processes(zombies=True)
    family = [ancestor]
    for pid in family:  # those that are found on the way are added
        family += [child for child, (parent, _) in processes.items() if parent == pid]
    living = _processes()
    return [pid for pid in family[1:] if pid in living]


def _processes(*, zombies: bool = False) -> dict[int, tuple[int, int]]:
    """The parents and groups of all processes, by their ids."""
    processes = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            state, parent, group = (entry / "stat").read_bytes().rpartition(b")")[2].decode().split()[:3]
        except OSError:  # the process ended meanwhile
            continue
        if zombies or state not in ("Z", "X"):
            processes[int(entry.name)] = int(parent), int(group)
    return processes


def end_group(group: int, *, keep: int | None = None, grace: float = GRACE) -> None:
    """Ends the processes of a group: with TERM, and after some time with KILL.

    Args:
        group: Id of the process group.
        keep: Id of a process that is not ended; None: all are.
        grace: Seconds between TERM and KILL.
    """
    _end(lambda: {*members(group)} - {keep}, grace)


def _end(living: Callable[[], set[int]], grace: float) -> None:
    """Ends processes: each with TERM, and all that are left after some time with KILL."""
    deadline = time.monotonic() + grace
    warned_pids: set[int] = set()
    while rest := living():
        late = time.monotonic() > deadline
        for pid in rest if late else rest - warned_pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL if late else signal.SIGTERM)
        warned_pids |= rest
        time.sleep(0.05)


def _low_priority() -> None:
    os.nice(_NICE)
    with suppress(OSError):  # where the scheduler groups processes by session, the group's niceness counts
        Path("/proc/self/autogroup").write_text(str(_NICE), encoding="utf-8")


def _adopt_orphans() -> None:
    """Makes this process the parent of descendants whose parent ends."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


def _reap(child: int) -> int | None:
    """Takes note of children that have ended. Returns the wait status of one of them if it has; else None."""
    status = None
    with suppress(ChildProcessError):
        while (process := os.waitpid(-1, os.WNOHANG))[0]:
            if process[0] == child:
                status = process[1]
    return status


def main(command: list[str], starter: int, *, low_priority: bool = False, grace: float = GRACE) -> int:
    """Runs a command under the guard, in this process. Does not start it if the starter is gone already.

    Args:
        command: The command and its arguments.
        starter: Id of the process that started this one. Its own look at its parent could come after the parent's
            death, and find another process.
        low_priority: See `guard_command`.
        grace: See `guard_command`.

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
    _adopt_orphans()
    process = subprocess.Popen(command)  # which would take the status of a quick command, if it were collected here
    child = process.pid
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})  # it only wakes the wait below
    while (status := _reap(child)) is None and not stopping and os.getppid() == starter:
        signal.sigtimedwait({signal.SIGCHLD}, 0.2)

    def living() -> set[int]:
        _reap(child)
        return {*members(os.getpgrp()), *descendants(os.getpid())} - {os.getpid()}

    _end(living, grace)
    if status is None:
        return 0
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code  # as shells do: 137 is SIGKILL


if __name__ == "__main__":
    at = sys.argv.index("--")
    sys.exit(
        main(
            sys.argv[at + 1 :],
            int(sys.argv[1]),
            low_priority="--low-priority" in sys.argv[3:at],
            grace=float(sys.argv[2]),
        )
    )
