"""How fast a model is trained, against what the device computes in one large product."""

from __future__ import annotations

import time
from functools import cache
from typing import Any

import torch

_SIZE = {"cuda": 8_192, "cpu": 512}
"""Rows of the matrices of the product that is measured: a few milliseconds."""
_REPEATS = 5


def flops_per_token(base: Any) -> float:
    """Forward and backward of a token through the frozen matrices: 2 + 2 operations a weight, without head and LoRA.

    Of experts, those count that a token goes through. Attention between tokens is left out."""
    text = base.config.get_text_config()
    count = getattr(text, "num_local_experts", None) or getattr(text, "num_experts", None) or 1
    active = (getattr(text, "num_experts_per_tok", None) or 1) / count
    count_of_token = 0.0
    for name, weight in base.get_decoder().named_parameters():
        if "layers." in name and "lora_" not in name:
            count_of_token += weight.numel() * (active if ".experts." in name else 1)
    return 4.0 * count_of_token


@cache
def product_flops(device: torch.device, dtype: torch.dtype) -> float:
    """Operations a second of the fastest of some products of two square matrices, after one that is not counted."""
    size = _SIZE.get(device.type, _SIZE["cpu"])
    generator = torch.Generator(device).manual_seed(0)  # the step's own random numbers stay as they are
    a, b = (torch.randn(size, size, dtype=dtype, device=device, generator=generator) for _ in range(2))
    seconds = []
    for _ in range(_REPEATS + 1):
        start = time.perf_counter()
        float((a @ b)[0, 0])  # waits for the device
        seconds.append(time.perf_counter() - start)
    return 2.0 * float(size) ** 3 / min(seconds[1:])
