"""How fast the processor is, how long a run of the quickstart takes on it, and on how many scenarios it measures."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from art_examples.quickstart.scenarios import KINDS

from trainer_server.process.hardware import DType, cpu_dtype, flavour

ROLLOUTS = 8
"""Of each scenario in a step."""
HELD_OUT = 120
HELD_OUT_IF_SLOW = 48
PATIENCE = 240.0
"""Seconds. Where a run would take longer, it measures on fewer scenarios."""
SHAPE = (48, 576, 1536)
"""Of the measured product: 48 tokens, by a layer of the embedded model."""
_FIXED = 20.0
"""Seconds of a run on any processor: start, swaps, report."""
_ROLLOUT: dict[DType, float] = {"bfloat16": 54.0, "float32": 170.0}
"""What a rollout costs with its training, as GFLOP of the measured product, by what engine and trainer compute in. This
and the next are measured: docs/benchmarks.md."""
_MEASUREMENT: dict[DType, float] = {"bfloat16": 34.0, "float32": 110.0}
"""What a run of the agent costs that is only measured."""


def expected_seconds(held_out: int, steps: int, rate: float, dtype: DType) -> float:
    """About how long a run takes.

    Args:
        held_out: Scenarios to measure on, before and after.
        steps: Its training steps.
        rate: As `product_rate` measures it.
        dtype: What engine and trainer compute in.
    """
    rollouts = steps * len(KINDS) * ROLLOUTS
    return _FIXED + (rollouts * _ROLLOUT[dtype] + 2 * held_out * _MEASUREMENT[dtype]) / rate


def choose_held_out(number: int | None, steps: int, progress: Callable[[str], None]) -> int:
    """How many scenarios to measure on.

    Args:
        number: What the user wants; None: it follows from the speed of the processor.
        steps: Training steps of the run.
        progress: Is called with a line about the time that the run will take.
    """
    held_out = number or HELD_OUT
    if flavour() == "cuda":
        return held_out
    rate, dtype = product_rate(), cpu_dtype()
    if number is None and expected_seconds(held_out, steps, rate, dtype) > PATIENCE:
        held_out = HELD_OUT_IF_SLOW
    minutes = max(1, round(expected_seconds(held_out, steps, rate, dtype) / 60))
    progress(
        f"this processor computes {rate:.0f} GFLOP/s (products in fp32), and the model in {dtype}: the run takes about "
        f"{minutes} minutes"
    )
    return held_out


def product_rate(seconds: float = 1.0) -> float:
    """Measures products of fp32 matrices on all cores of this process.

    Args:
        seconds: How long to measure.

    Returns:
        GFLOP/s of the fastest product: others wait for what else runs at that moment.
    """
    import numpy

    rows, width, columns = SHAPE
    left, right = numpy.ones((rows, width), numpy.float32), numpy.ones((width, columns), numpy.float32)
    _ = left @ right  # starts the threads
    end, fastest = time.perf_counter() + seconds, math.inf
    while (began := time.perf_counter()) < end:
        _ = left @ right
        fastest = min(fastest, time.perf_counter() - began)
    return 2e-9 * rows * width * columns / fastest
