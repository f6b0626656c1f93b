"""How much a run of the quickstart computes, chosen by how fast the processor is."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from art_examples.quickstart.scenarios import KINDS

from trainer_server.process.hardware import DType, cpu_dtype, flavour

SHAPE = (48, 576, 1536)
"""Of the measured product: 48 tokens, by a layer of the embedded model."""
PATIENCE = 240.0
"""Seconds. A run that would take longer is reduced."""
_FIXED = 30.0
"""Seconds of a run on any processor: start, swaps, report."""
_COSTS: dict[DType, float] = {"bfloat16": 35.0, "float32": 60.0}
"""What a run of the agent costs on average, in rollouts with their training and in measurements, as GFLOP of the
measured product, by what engine and trainer compute in: docs/benchmarks.md."""


@dataclass(frozen=True, slots=True)
class Size:
    """held_out: scenarios to measure on, before and after. n: rollouts of each scenario in a step."""

    held_out: int
    n: int

    def seconds(self, steps: int, rate: float, dtype: DType) -> float:
        """About how long a run takes.

        Args:
            steps: Its training steps.
            rate: As `product_rate` measures it.
            dtype: What engine and trainer compute in.
        """
        return _FIXED + (2 * self.held_out + steps * len(KINDS) * self.n) * _COSTS[dtype] / rate


WHOLE = Size(held_out=120, n=8)
REDUCED = Size(held_out=48, n=5)


def choose_size(steps: int, progress: Callable[[str], None]) -> Size:
    """The size for this machine. progress: is called with a line about the time that the run will take."""
    if flavour() == "cuda":
        return WHOLE
    rate, dtype = product_rate(), cpu_dtype()
    size = WHOLE if WHOLE.seconds(steps, rate, dtype) <= PATIENCE else REDUCED
    reduced = f"; reduced to {size.n} rollouts of a scenario and {size.held_out} held-out scenarios"
    progress(
        f"this processor computes {rate:.0f} GFLOP/s (products in fp32), and the model in {dtype}: about "
        f"{size.seconds(steps, rate, dtype) / 60:.0f} minutes{reduced if size is REDUCED else ''}"
    )
    return size


def product_rate(seconds: float = 0.3) -> float:
    """Measures products of fp32 matrices on all cores of this process.

    Args:
        seconds: How long to measure.

    Returns:
        GFLOP/s.
    """
    import numpy

    rows, width, columns = SHAPE
    left, right = numpy.ones((rows, width), numpy.float32), numpy.ones((width, columns), numpy.float32)
    _ = left @ right  # starts the threads
    count, began = 0, time.perf_counter()
    while (passed := time.perf_counter() - began) < seconds:
        _ = left @ right
        count += 1
    return 2e-9 * rows * width * columns * count / passed
