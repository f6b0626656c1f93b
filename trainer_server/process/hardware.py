"""What this machine has: whether engine and trainer compute on CUDA GPUs or on the CPU."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Literal

Flavour = Literal["cpu", "cuda"]
DType = Literal["bfloat16", "float32"]

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
    listed = [line.partition(":")[2].split() for line in lines if line.startswith(("flags", "Features"))]
    return "bfloat16" if not listed or _BF16.intersection(listed[0]) else "float32"


def gpu_count() -> int | None:
    """How many GPUs this process may use: those of CUDA_VISIBLE_DEVICES, or all of the machine. 0: it has none. None:
    there are some, and nothing says how many."""
    if flavour() == "cpu":
        return 0
    if (visible := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return len([name for name in visible.split(",") if name.strip() and name.strip() != "-1"])
    return len([path for path in Path("/dev").glob("nvidia*") if _GPU.fullmatch(path.name)]) or None
