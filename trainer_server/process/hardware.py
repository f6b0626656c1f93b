"""What this machine has: GPUs, instructions of its processor, memory, disk. Imports the standard library only."""

from __future__ import annotations

import ctypes
import gc
import os
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path
from typing import Literal

Flavour = Literal["cpu", "cuda"]
DType = Literal["bfloat16", "float32"]

GIB = 1 << 30
_BF16 = {"avx512_bf16", "amx_bf16", "bf16"}
"""Instructions for bf16, as Linux names them: two sets of x86, and one of ARM."""
_GPU = re.compile(r"nvidia\d+")


def flavour() -> Flavour:
    """`cuda` where an NVIDIA driver is present, else `cpu`. Looks at each call; imports no torch."""
    return "cuda" if Path("/dev/nvidia0").exists() or shutil.which("nvidia-smi") else "cpu"


def cpu_dtype(cpuinfo: Path = Path("/proc/cpuinfo")) -> DType:
    """What engine and trainer compute in on this machine's CPU: fp32 where it has no instructions for bf16.

    Without them products of bf16 matrices are emulated, and took eight to ten times as long as those of fp32 on an AMD
    EPYC with AVX2. The weights of a bf16 model are the same numbers in fp32.

    Args:
        cpuinfo: Where the system lists the processor's instructions. Systems without it are taken to have them.
    """
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return "bfloat16"
    instructions = [line.partition(":")[2].split() for line in lines if line.startswith(("flags", "Features"))]
    return "bfloat16" if not instructions or _BF16.intersection(instructions[0]) else "float32"


def gpu_count() -> int | None:
    """How many GPUs this process may use: those of CUDA_VISIBLE_DEVICES, or all of the machine. 0: it has none. None:
    there are some, and nothing says how many."""
    if flavour() == "cpu":
        return 0
    if (visible := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return len([name for name in visible.split(",") if name.strip() and name.strip() != "-1"])
    return len([path for path in Path("/dev").glob("nvidia*") if _GPU.fullmatch(path.name)]) or None


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
    return [total for (total,) in _query_gpus("memory.total")]  # alone: some drivers do not say what is in use


def visible_gpus() -> dict[str, tuple[int, int]]:
    """(used, total) bytes of memory of each GPU that this process may use, by its name in CUDA_VISIBLE_DEVICES.
    Empty: there is none, its driver does not answer, or the variable has names that are no numbers."""
    by_name = {str(at): use for at, use in enumerate(gpu_use())}
    names = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(by_name)).split(",")
    return {name.strip(): by_name[name.strip()] for name in names if name.strip() in by_name}


def gpu_use() -> list[tuple[int, int]]:
    """(used, total) bytes of memory of each NVIDIA GPU; empty if there is none, or its driver does not answer."""
    return [(used, total) for used, total in _query_gpus("memory.used,memory.total")]


def _query_gpus(columns: str) -> list[list[int]]:
    """What the driver says of each GPU: columns in MiB, as bytes."""
    line = ["nvidia-smi", f"--query-gpu={columns}", "--format=csv,noheader,nounits"]
    try:
        result = subprocess.run(line, capture_output=True, text=True, check=True, timeout=20)
        return [[int(mib) << 20 for mib in row.split(",")] for row in result.stdout.splitlines()]
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


def release_memory() -> None:
    """Gives memory that this process has freed back to the system. Does nothing where the C library is not glibc.

    glibc keeps what was freed between blocks that are in use, for later allocations. A trainer whose rows have ever
    other sizes would so grow from job to job.
    """
    gc.collect()
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError, TypeError):  # musl and macOS have no malloc_trim; Windows has no name for itself
        return


def checkpoint_above(layers: int, hidden_size: int, number: int = 2) -> int:
    """Tokens of a row above which the trainer uses checkpointing, which computes layers twice.

    It is 6,144 for SmolLM2-135M (30 layers, hidden size 576) in bf16, whose activations then take 4.7 GB, half as much
    in fp32, and less for larger models.

    Args:
        layers: Number of layers.
        hidden_size: Hidden size.
        number: Bytes of a number of the activations; 2 in bf16.
    """
    return 6144 * 30 * 576 * 2 // (layers * hidden_size * number)
