"""Points at which a test lets a process fail: killed, or with a full disk. They do nothing unless ART_FAULT is set.

ART_FAULT names a file. While it holds the name of a point, the process that comes to that point is killed by SIGKILL
there; with `:ENOSPC` behind the name it meets that OSError instead. The file is gone once it has happened.
"""

from __future__ import annotations

import errno
import os
import signal
from pathlib import Path
from typing import Literal

Point = Literal[
    # the server takes a job
    "accepting",
    "accepted",
    # the trainer does it
    "started",
    "gathered",
    "gradients",
    "updated",
    "weights",
    "state",
    "staged",
    "published",
    "reporting",
    "trained",
    # the server puts its version into service
    "swapping",
    "loading",
    "loaded",
    "swapped",
    "finishing",
    "done",
    # a command moves a ledger
    "moved",
    "compared",
]


def point(name: Point) -> None:
    """A test may let this process fail here."""
    file = os.environ.get("ART_FAULT")
    if not file:
        return
    try:
        target, _, how = Path(file).read_text().partition(":")
        if target != name:
            return
        Path(file).unlink()
    except FileNotFoundError:
        return
    if how:
        raise OSError(getattr(errno, how), os.strerror(getattr(errno, how)))
    os.kill(os.getpid(), signal.SIGKILL)
