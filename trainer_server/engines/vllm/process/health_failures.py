"""How long a vLLM may leave health checks unanswered."""

from __future__ import annotations

import time

PATIENCE = 60.0
"""Seconds for which an engine may leave health checks unanswered while its process runs. A front end that answers
hundreds of requests is slow to answer a check too, and a restart would break all of them off."""
PATIENT_CHECKS = 5
"""Health checks that must fail in that time, one after another."""


class HealthFailures:
    """Counts health checks that failed one after another, and for how long they have."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._checks = 0

    def record(self) -> None:
        """Counts one more failed check."""
        self._since = time.monotonic() if self._since is None else self._since
        self._checks += 1

    @property
    def too_many(self) -> bool:
        """Whether the engine has been silent for too long."""
        silent = 0.0 if self._since is None else time.monotonic() - self._since
        return self._checks >= PATIENT_CHECKS and silent >= PATIENCE

    def over(self) -> None:
        """Forgets the failed checks: the engine has answered."""
        self._since, self._checks = None, 0
