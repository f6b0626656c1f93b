"""How many processors this process may use: a container or a job often has fewer than the machine."""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path

_GROUPS = Path("/sys/fs/cgroup")


def processor_count() -> int:
    """Processors that this process may run on, by its affinity and the quota of its control group; 1 at least.

    `os.cpu_count` counts those of the machine: with more threads than processors each waits for one that does not run.
    """
    if sys.platform == "linux":
        count = len(os.sched_getaffinity(0))
    else:  # macOS has no affinity
        count = os.cpu_count() or 1
    return max(1, math.ceil(min(count, _quota())))


def _quota() -> float:
    """Seconds of processor time for each second, as version 2 or 1 of control groups have it; infinite for no limit."""
    try:
        if (limit := _GROUPS / "cpu.max").exists():
            quota, period = limit.read_text("utf-8").split()
        else:
            files = (_GROUPS / "cpu" / f"cpu.cfs_{name}_us" for name in ("quota", "period"))
            quota, period = (file.read_text("utf-8") for file in files)
        return int(quota) / int(period) if int(quota) > 0 else math.inf
    except (OSError, ValueError, ZeroDivisionError):  # there is none, or it is "max"
        return math.inf
