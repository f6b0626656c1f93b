"""Bounds of the values that clients send: what is within them can be stored, sorted and shown."""

from __future__ import annotations

import math
import time
from typing import Annotated

from pydantic import AfterValidator, Field, ValidationInfo

MOST_ID = 400
"""Characters of an id, which databases have in indexes."""
MOST_REWARD = 1e6
"""Rewards are within ± this, so that sums and squares of them are finite."""
_AHEAD = 86400.0
"""Seconds by which a time may lie ahead of the server's clock."""
ARRIVAL = {"arrives": True}
"""The context of a validation in which times are compared with the server's clock: not while stored records are read,
which were compared when they arrived."""


def reward_problem(reward: float, name: str = "reward") -> str | None:
    """Why a number cannot be a reward, and what to give instead. None: it can.

    Args:
        reward: The number.
        name: What it is: "reward", or "advantage", which has the same bounds.
    """
    if not math.isfinite(reward):
        return f"the {name} is {reward}, not a finite number"
    if abs(reward) > MOST_REWARD:
        return f"the {name} is {reward:g}, beyond ±{MOST_REWARD:g}: scale the {name}s down"
    return None


def _is_past(moment: float, info: ValidationInfo) -> float:
    if info.context == ARRIVAL and moment > time.time() + _AHEAD:
        raise ValueError(
            f"{moment:g} lies more than a day ahead of the server's clock: send Unix time in seconds, and set the clock"
        )
    return moment


Moment = Annotated[float, Field(ge=0, allow_inf_nan=False), AfterValidator(_is_past)]
"""Unix time, seconds."""
Seconds = Annotated[float, Field(ge=-1e9, le=1e9)]
"""A duration. Negative ones come from clients whose clock was set back."""
Integer = Annotated[int, Field(ge=-(2**63), lt=2**63)]
"""A whole number that databases can hold."""
Identifier = Annotated[str, Field(max_length=MOST_ID)]
"""An id that a client gave."""
