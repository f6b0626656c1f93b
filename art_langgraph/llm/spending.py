"""What all language models of this process have cost: those that judge, give hints, or write scenarios."""

from __future__ import annotations

import threading
from typing import NamedTuple


class Spending(NamedTuple):
    """Money that was spent on language models."""

    usd: float = 0.0
    """Sum of the prices that are known."""
    unpriced_count: int = 0
    """Answers whose price is not known."""


_lock = threading.Lock()
_total = Spending()


def add_price(usd: float | None) -> None:
    """An answer has come.

    Args:
        usd: Its price in USD; None: unknown.
    """
    global _total
    with _lock:
        _total = Spending(_total.usd + (usd or 0.0), _total.unpriced_count + (usd is None))


def current_spending() -> Spending:
    """What was spent by now, since the process began."""
    return _total
