"""What this machine has: whether engine and trainer compute on CUDA GPUs or on the CPU."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Literal

Flavour = Literal["cpu", "cuda"]


_GPU = re.compile(r"nvidia\d+")


def flavour() -> Flavour:
    """`cuda` where an NVIDIA driver is present, else `cpu`. Looks at each call; imports no torch."""
    return "cuda" if Path("/dev/nvidia0").exists() or shutil.which("nvidia-smi") else "cpu"


def gpu_count() -> int | None:
    """How many GPUs this process may use: those of CUDA_VISIBLE_DEVICES, or all of the machine. 0: it has none. None:
    there are some, and nothing says how many."""
    if flavour() == "cpu":
        return 0
    if (visible := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return len([name for name in visible.split(",") if name.strip() and name.strip() != "-1"])
    return len([path for path in Path("/dev").glob("nvidia*") if _GPU.fullmatch(path.name)]) or None
