"""Points at which a test lets a process fail: killed, or with a full disk. They do nothing unless ART_FAULT says so.

ART_FAULT=published           the process that comes to the point `published` is killed there, by SIGKILL
ART_FAULT=published:ENOSPC    it meets OSError(ENOSPC) there
ART_FAULT_MARK=FILE           made when it happens; once it is there, nothing happens any more
"""

from __future__ import annotations

import errno
import os
import signal
from pathlib import Path
from typing import Literal

Point = Literal[
    # the server takes a job
    "accepting", "accepted",
    # the trainer does it
    "started", "gathered", "gradients", "updated", "weights", "state", "staged", "published", "reporting", "trained",
    # the server puts its version into service
    "swapping", "loading", "loaded", "swapped", "finishing", "done",
]  # fmt: skip


def point(name: Point) -> None:
    """A test may let this process fail here."""
    asked, _, how = os.environ.get("ART_FAULT", "").partition(":")
    if asked != name:
        return
    if mark := os.environ.get("ART_FAULT_MARK"):
        try:
            Path(mark).touch(exist_ok=False)
        except FileExistsError:
            return
    if how:
        raise OSError(getattr(errno, how), os.strerror(getattr(errno, how)))
    os.kill(os.getpid(), signal.SIGKILL)
