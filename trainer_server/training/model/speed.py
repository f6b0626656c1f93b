"""How fast a model is trained, against what the device computes in one large product."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

_SIZE = {"cuda": 8_192, "cpu": 512}
"""Rows of the matrices of the product that is measured: a few milliseconds."""


def flops_per_token(base: Any) -> float:
    """Forward and backward of a token through the frozen matrices: 2 + 2 operations a weight, without head and LoRA.

    Of experts, those count that a token goes through. Attention between tokens is left out."""
    text = base.config.get_text_config()
    count = getattr(text, "num_local_experts", None) or getattr(text, "num_experts", None) or 1
    chosen = getattr(text, "num_experts_per_tok", None) or getattr(text, "top_k_experts", None) or count
    active = chosen / count
    count_of_token = 0.0
    for name, weight in base.get_decoder().named_parameters():
        if "layers." in name and "lora_" not in name:
            count_of_token += weight.numel() * (active if ".experts." in name else 1)
    return 4.0 * count_of_token


@cache
def product_flops(
    device: torch.device,
    dtype: torch.dtype,
    *,
    size: int | None = None,
    repeats: int = 5,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Operations a second of the fastest of some products of two square matrices, after one that is not counted.

    Args:
        device: That computes them.
        dtype: Of the matrices.
        size: Their rows. None: by the kind of device.
        repeats: How many products count.
        clock: Seconds.
    """
    size = size or _SIZE.get(device.type, _SIZE["cpu"])
    generator = torch.Generator(device).manual_seed(0)  # the step's own random numbers stay as they are
    a, b = (torch.randn(size, size, dtype=dtype, device=device, generator=generator) for _ in range(2))
    seconds = []
    for _ in range(repeats + 1):
        start = clock()
        float((a @ b)[0, 0])  # waits for the device
        seconds.append(clock() - start)
    return 2.0 * float(size) ** 3 / min(seconds[1:])
