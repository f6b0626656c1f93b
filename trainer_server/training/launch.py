"""Starts the trainer's ranks on this machine: `python -m trainer_server.training.launch COUNT MODULE [ARGUMENT …]`.

The ranks meet in a file of a directory that only this user can read, and their sockets are bound to the loopback
interface. torchrun is not used: its store listens on all interfaces, and answers anybody.

No rank outlives the others: when the first rank ends, or another one fails, this process ends the rest. Imports the
standard library only.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

RENDEZVOUS = "ART_RENDEZVOUS"
"""Environment variable with the file in which the ranks meet."""

GRACE = 5.0
"""Seconds between TERM and KILL."""

_POLL = 0.05
"""Seconds between looks at the ranks."""


def loopback() -> str:
    """The name of the loopback interface: `lo` on Linux, `lo0` on macOS."""
    return next((name for _, name in socket.if_nameindex() if name.startswith("lo")), "lo")


def environment(index: int, count: int, rendezvous: Path) -> dict[str, str]:
    """The variables that make a process rank `index` of `count`; `Ranks.join` reads them.

    Args:
        index: From 0.
        count: How many ranks there are.
        rendezvous: The file in which they meet.
    """
    return {
        "RANK": str(index),
        "LOCAL_RANK": str(index),
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        RENDEZVOUS: str(rendezvous),
        "GLOO_SOCKET_IFNAME": loopback(),
        "NCCL_SOCKET_IFNAME": loopback(),
    }


def launch(count: int, command: Sequence[str]) -> int:
    """Runs a command as `count` ranks until the first rank ends or another one fails; then ends the others.

    Args:
        count: How many ranks.
        command: What each of them runs.

    Returns:
        The exit status of the rank that failed, or of the first rank; 128 + n if signal n ended it.
    """
    with tempfile.TemporaryDirectory(prefix="art-ranks-") as private:  # made with mode 0700
        ranks: list[subprocess.Popen[bytes]] = []
        try:
            for index in range(count):
                variables = environment(index, count, Path(private) / "store")
                ranks.append(subprocess.Popen(command, env={**os.environ, **variables}))
            index, status = _wait(ranks)
        finally:
            _end(ranks)
    if status:
        print(f"rank {index} of {count} ended with status {status}: the others are ended too", file=sys.stderr)
    return status if status >= 0 else 128 - status  # as shells do: 137 is SIGKILL


def _wait(ranks: Sequence[subprocess.Popen[bytes]]) -> tuple[int, int]:
    """Waits for the rank whose end ends all; returns its index and its exit status."""
    while True:
        for index, rank in enumerate(ranks):
            status = rank.poll()
            if status or (index == 0 and status is not None):
                return index, status
        time.sleep(_POLL)


def _end(ranks: Sequence[subprocess.Popen[bytes]]) -> None:
    """Ends the ranks that are still there: with TERM, and after some time with KILL."""
    for rank in ranks:
        rank.terminate()
    deadline = time.monotonic() + GRACE
    for rank in ranks:
        try:
            rank.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            rank.kill()
            rank.wait()


def _stop(_signal: int, _frame: FrameType | None) -> None:
    raise SystemExit(0)


def main() -> None:
    """Runs the launcher; see the module."""
    signal.signal(signal.SIGTERM, _stop)
    count, module, *arguments = sys.argv[1:]
    sys.exit(launch(int(count), [sys.executable, "-m", module, *arguments]))


if __name__ == "__main__":
    main()
