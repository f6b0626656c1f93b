"""What this machine has: whether engine and trainer compute on CUDA GPUs or on the CPU."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Literal

Flavour = Literal["cpu", "cuda"]


def flavour() -> Flavour:
    """`cuda` where an NVIDIA driver is present, else `cpu`. Looks at each call; imports no torch."""
    return "cuda" if Path("/dev/nvidia0").exists() or shutil.which("nvidia-smi") else "cpu"
