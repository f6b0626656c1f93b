"""Memory and disk of this machine and of its processes, and the memory of its GPUs."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections import Counter
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


def gpu_use() -> list[tuple[int, int]]:
    """(used, total) bytes of memory of each NVIDIA GPU; empty if there is none, or its driver does not answer."""
    line = ["nvidia-smi", "--query-gpu=memory.used,memory.total", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(line, capture_output=True, text=True, check=True, timeout=20)
        rows = [row.split(",") for row in done.stdout.splitlines()]
        return [(int(used) << 20, int(total) << 20) for used, total in rows]
    except (OSError, ValueError, subprocess.SubprocessError):
        return []


def memory_in_use() -> int | None:
    """Bytes of main memory that are in use, of the machine or of the container; None: the system does not say.

    What the system keeps of files, and would give back at once, does not count.
    """
    try:
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
        stat = Path("/sys/fs/cgroup/memory.stat").read_text().split()
        return used - int(stat[stat.index("inactive_file") + 1])
    except (OSError, ValueError, IndexError):  # there is no container
        pass
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        kib = {name: int(value.split()[0]) for name, _, value in (line.partition(":") for line in lines)}
        return (kib["MemTotal"] - kib["MemAvailable"]) << 10
    except (OSError, ValueError, KeyError, IndexError):
        return None


def resident_memory(process: int) -> int:
    """Bytes of memory of one process; 0 where it is gone, or the system does not say."""
    return _resident(Path(f"/proc/{process}/stat"))[1]


def resident_memory_of_sessions() -> Counter[int]:
    """Bytes of memory of all processes by their session. Pages that processes share are counted for each."""
    sizes: Counter[int] = Counter()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        session, size = _resident(stat)
        sizes[session] += size
    return sizes


def _resident(stat: Path) -> tuple[int, int]:
    """Session and bytes of memory of a process."""
    try:
        values = stat.read_text(errors="replace").rpartition(")")[2].split()
        return int(values[3]), int(values[21]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):  # it has ended meanwhile, or this is not Linux
        return 0, 0


def free_disk(path: Path) -> int:
    """Bytes that are free on the disk of a path, which need not exist yet."""
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free
