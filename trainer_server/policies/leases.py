"""Leases: all completions of a rollout come from one version of a policy, also when newer versions come meanwhile."""

from __future__ import annotations

import heapq
import time
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass


@dataclass(eq=False, slots=True)
class _Lease:
    version: int
    expiry: float


class Leases:
    """A rollout holds a version for `seconds` from its last call, or until it is released.

    A call costs O(log n) of n leases at most, on average: expired leases are taken from the top of a heap.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._held: dict[str, dict[str, _Lease]] = {}
        """Rollout → policy → lease."""
        self._pins: Counter[tuple[str, int]] = Counter()
        """(policy, version) → how many leases hold it."""
        self._expiries: list[tuple[float, int, str, str, _Lease]] = []
        """A heap with one entry for each lease: when to look whether it has expired, a number that makes entries
        unequal, rollout, policy, lease. A renewed lease gets its later time when its entry comes to the top."""
        self._entries = 0

    def pin(self, rollout: str, policy: str, newest: int) -> int:
        """The version of this rollout: the one it holds, or from now on the newest."""
        self._expire()
        expiry = self._clock() + self._seconds
        leases = self._held.setdefault(rollout, {})
        if (lease := leases.get(policy)) is not None:
            lease.expiry = expiry
            return lease.version
        lease = leases[policy] = _Lease(newest, expiry)
        self._pins[policy, newest] += 1
        self._push(rollout, policy, lease)
        return newest

    def release(self, rollouts: Collection[str]) -> None:
        """Ends the leases of rollouts; those that have none are fine."""
        for rollout in rollouts:
            for policy, lease in self._held.pop(rollout, {}).items():
                self._unpin(policy, lease)

    def versions(self) -> Collection[tuple[str, int]]:
        """(policy, version) pairs that a rollout holds."""
        self._expire()
        return self._pins.keys()

    def _expire(self) -> None:
        now = self._clock()
        while self._expiries and self._expiries[0][0] < now:
            _, _, rollout, policy, lease = heapq.heappop(self._expiries)
            leases = self._held.get(rollout, {})
            if leases.get(policy) is not lease:  # it was released
                continue
            if lease.expiry >= now:  # it was renewed
                self._push(rollout, policy, lease)
                continue
            del leases[policy]
            if not leases:
                del self._held[rollout]
            self._unpin(policy, lease)

    def _push(self, rollout: str, policy: str, lease: _Lease) -> None:
        self._entries += 1
        heapq.heappush(self._expiries, (lease.expiry, self._entries, rollout, policy, lease))

    def _unpin(self, policy: str, lease: _Lease) -> None:
        key = policy, lease.version
        self._pins[key] -= 1
        if not self._pins[key]:
            del self._pins[key]
