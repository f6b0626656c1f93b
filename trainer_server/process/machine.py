"""Memory and disk of this machine, and the memory of its GPUs."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

GIB = 1 << 30


def main_memory() -> int:
    """Bytes of main memory: of the machine, or of the container that this process is in, where that has less."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
    except (OSError, ValueError):  # no limit is written as `max`
        return machine
    return min(machine, limit)


def gpu_memory() -> list[int]:
    """Bytes of memory of each NVIDIA GPU; empty if there is none, or its driver does not answer."""
    line = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(line, capture_output=True, text=True, check=True, timeout=20)
        return [int(mib) << 20 for mib in done.stdout.split()]
    except (OSError, ValueError, subprocess.SubprocessError):
        return []


def free_disk(path: Path) -> int:
    """Bytes that are free on the disk of a path, which need not exist yet."""
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free
