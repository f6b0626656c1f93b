"""The time of a run: Unix time that goes on evenly, also where somebody sets the system's clock during the run."""

from __future__ import annotations

import time


class RunClock:
    """Reads the system's clock once; from then on the clock that nobody sets. So the differences of its times are
    durations, and what began later has the later time."""

    def __init__(self) -> None:
        self._offset = time.time() - time.monotonic()

    def now(self) -> float:
        """Unix time, seconds."""
        return self._offset + time.monotonic()
