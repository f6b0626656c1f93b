"""Leases: all completions of a rollout come from one version of a policy, also when newer versions come meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection


class Leases:
    """A rollout holds a version for `seconds` from its last call, or until it is released."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._held: dict[tuple[str, str], tuple[int, float]] = {}
        """(rollout, policy) → (version, time of expiry)."""

    def pin(self, rollout: str, policy: str, newest: int) -> int:
        """The version of this rollout: the one it holds, or from now on the newest."""
        now = self._clock()
        version, expiry = self._held.get((rollout, policy), (newest, 0.0))
        if expiry < now:
            version = newest
            self._held = {key: held for key, held in self._held.items() if held[1] >= now}
        self._held[rollout, policy] = (version, now + self._seconds)
        return version

    def release(self, rollouts: Collection[str]) -> None:
        """Ends the leases of rollouts; those that have none are fine."""
        self._held = {key: held for key, held in self._held.items() if key[0] not in rollouts}

    def versions(self) -> set[tuple[str, int]]:
        """(policy, version) pairs that a rollout holds."""
        now = self._clock()
        return {(policy, version) for (_, policy), (version, expiry) in self._held.items() if expiry >= now}
