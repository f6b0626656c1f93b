"""Leases: all completions of a rollout come from one version of a policy, also when newer versions come meanwhile."""

from __future__ import annotations

import heapq
import time
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass

_AT_ONCE = 1000
"""Leases that one call looks at, so that many that expire together hold nobody up: about two milliseconds. What is left
is looked at by the next calls, and pins its version until then."""


@dataclass(eq=False, slots=True)
class _Lease:
    policy: str
    version: int
    expiry: float


class Leases:
    """A rollout holds a version for `seconds` from its last call, or until it is released.

    A call costs O(log n) of n leases: expired leases are taken from the top of a heap, a bounded number at a time.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._held: dict[str, dict[str, _Lease]] = {}
        """Rollout → the name that it asked for → lease."""
        self._pins: Counter[tuple[str, int]] = Counter()
        """(policy, version) → how many leases hold it."""
        self._expiries: list[tuple[float, int, str, str, _Lease]] = []
        """A heap with one entry for each lease: when to look whether it has expired, a number that makes entries
        unequal, rollout, name, lease. A renewed lease gets its later time when its entry comes to the top."""
        self._entries = 0

    def pin(self, rollout: str, policy: str, version: int, *, asked: str = "") -> int:
        """The version of this rollout: the one that it holds, or from now on the given one.

        Args:
            rollout: Id of the rollout.
            policy: Name of the policy.
            version: What the name means now.
            asked: The name that the rollout asked for, where that is another than the policy's: `agent@latest` has a
                lease of its own.
        """
        self._expire()
        now, name = self._clock(), asked or policy
        leases = self._held.setdefault(rollout, {})
        if (lease := leases.get(name)) is not None:
            if lease.expiry >= now:
                lease.expiry = now + self._seconds
                return lease.version
            self._unpin(lease)
        lease = leases[name] = _Lease(policy, version, now + self._seconds)
        self._pins[policy, version] += 1
        self._push(rollout, name, lease)
        return version

    def held(self, rollout: str, policy: str) -> int | None:
        """The version of a policy that a rollout holds, by the policy's name alone; None: it holds none."""
        lease = self._held.get(rollout, {}).get(policy)
        return lease.version if lease is not None and lease.expiry >= self._clock() else None

    def release(self, rollouts: Collection[str]) -> None:
        """Ends the leases of rollouts; those that have none are fine."""
        for rollout in rollouts:
            for lease in self._held.pop(rollout, {}).values():
                self._unpin(lease)

    def versions(self) -> Collection[tuple[str, int]]:
        """(policy, version) pairs that a rollout holds."""
        self._expire()
        return self._pins.keys()

    def _expire(self) -> None:
        now = self._clock()
        for _ in range(_AT_ONCE):
            if not self._expiries or self._expiries[0][0] >= now:
                return
            _, _, rollout, name, lease = heapq.heappop(self._expiries)
            leases = self._held.get(rollout, {})
            if leases.get(name) is not lease:  # it was released
                continue
            if lease.expiry >= now:  # it was renewed
                self._push(rollout, name, lease)
                continue
            del leases[name]
            if not leases:
                del self._held[rollout]
            self._unpin(lease)

    def _push(self, rollout: str, name: str, lease: _Lease) -> None:
        self._entries += 1
        heapq.heappush(self._expiries, (lease.expiry, self._entries, rollout, name, lease))

    def _unpin(self, lease: _Lease) -> None:
        key = lease.policy, lease.version
        self._pins[key] -= 1
        if not self._pins[key]:
            del self._pins[key]
