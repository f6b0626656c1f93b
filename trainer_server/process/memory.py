"""Memory that a process has freed goes back to the system."""

from __future__ import annotations

import ctypes
import gc


def release() -> None:
    """Gives freed memory back. Does nothing where the C library is not glibc.

    glibc keeps what was freed between blocks that are in use, for later allocations. A trainer whose rows have ever
    other sizes would so grow from job to job.
    """
    gc.collect()
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError, TypeError):  # musl and macOS have no malloc_trim; Windows has no name for itself
        return
