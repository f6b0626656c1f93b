"""How many GPUs a training is charged for, and their price."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from trainer_server.wire import ConfigError

GPU_HOUR_PRICE = "ART_GPU_HOUR_PRICE"
"""The environment variable with the price of a GPU-hour in USD, for a server and for clients."""

log = logging.getLogger("art_langgraph")


@dataclass(frozen=True, slots=True)
class GPUPrice:
    """What the server's GPUs cost.

    Args:
        gpus: GPUs that are paid for while a training runs. 0: the server computes on CPUs. None: unknown.
        usd_per_hour: Price of an hour of one of them. None: unknown.
    """

    gpus: int | None = None
    usd_per_hour: float | None = None

    @classmethod
    def of(cls, health: Mapping[str, Any], environment: Mapping[str, str] = os.environ) -> Self:
        """What the server says, and the price in the environment of this process, which comes first.

        Args:
            health: What `GET /health` answers to holders of the token.
            environment: The environment.

        Raises:
            ConfigError: The price in the environment is no number of at least 0.
        """
        gpus, price = health.get("gpus"), health.get("gpu_hour_price")
        if text := environment.get(GPU_HOUR_PRICE):
            price = parse_price(text)
        return cls(gpus if isinstance(gpus, int) else None, price if isinstance(price, int | float) else None)

    def hours(self, seconds: float) -> float | None:
        """GPU-hours of some seconds; None: it is not known how many GPUs there are."""
        return None if self.gpus is None else self.gpus * seconds / 3600

    def usd(self, seconds: float) -> float | None:
        """Their price; None: it is not known. Without GPUs it is 0: a computer's other parts have no price here."""
        hours = self.hours(seconds)
        if hours is None or (hours and self.usd_per_hour is None):
            return None
        return hours * (self.usd_per_hour or 0.0)


def parse_price(text: str) -> float:
    """The value of `ART_GPU_HOUR_PRICE`. Raises ConfigError for anything but a number of at least 0."""
    try:
        price = float(text)
    except ValueError:
        price = math.nan
    if not (math.isfinite(price) and price >= 0):
        raise ConfigError(f"{GPU_HOUR_PRICE}={text}: give the price of a GPU-hour in USD, such as 2.5")
    return price
