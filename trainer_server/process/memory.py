"""The memory of the trainer: rows whose layers are computed twice, and freed memory that goes back to the system."""

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
