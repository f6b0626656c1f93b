"""Leases: all completions of a rollout come from one version of a policy, also when newer versions come meanwhile."""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Protocol

from trainer_server.ledger.storage.fleet import SharedPins

_AT_ONCE = 1000
"""Leases that one call looks at, so that many that expire together hold nobody up: about two milliseconds. What is left
is looked at by the next calls, and pins its version until then."""


@dataclass(eq=False, slots=True)
class _Lease:
    policy: str
    version: int
    expiry: float


class Leases(Protocol):
    """A rollout holds a version for some time from its last call, or until it is released.

    `LocalLeases` are those of one server. `SharedLeases` are those of a fleet; their methods raise LedgerError.
    """

    async def pin(self, rollout: str, policy: str, version: int, *, asked: str = "") -> int:
        """The version of this rollout: the one that it holds, or from now on the given one.

        Args:
            rollout: Id of the rollout.
            policy: Name of the policy.
            version: What the name means now.
            asked: The name that the rollout asked for, where that is another than the policy's: `agent@latest` has a
                lease of its own.
        """
        ...

    async def held(self, rollout: str, policy: str) -> int | None:
        """The version of a policy that a rollout holds, by the policy's name alone; None: it holds none."""
        ...

    async def release(self, rollouts: Collection[str]) -> None:
        """Ends the leases of rollouts; those that have none are fine."""
        ...


class SharedLeases:
    """The leases of a fleet; see `Leases`. The database counts their time.

    Args:
        pins: The database.
        seconds: How long a lease is.
    """

    def __init__(self, pins: SharedPins, seconds: float) -> None:
        self._pins, self._seconds = pins, seconds

    async def pin(self, rollout: str, policy: str, version: int, *, asked: str = "") -> int:
        return await self._pins.pin(rollout, asked or policy, (policy, version), self._seconds)

    async def held(self, rollout: str, policy: str) -> int | None:
        return await self._pins.held(rollout, policy)

    async def release(self, rollouts: Collection[str]) -> None:
        await self._pins.release(rollouts)


class LocalLeases:
    """The leases of one server, in memory; see `Leases`.

    All leases are as long, so the one that was renewed first expires first. A call costs the same however many leases
    there are, and a lease that has ended takes no memory.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._held: dict[str, dict[str, _Lease]] = {}
        """Rollout → the name that it asked for → lease."""
        self._pins: Counter[tuple[str, int]] = Counter()
        """(policy, version) → how many leases hold it."""
        self._expiries: OrderedDict[tuple[str, str], _Lease] = OrderedDict()
        """The same leases by (rollout, name), in the order in which they expire."""

    async def pin(self, rollout: str, policy: str, version: int, *, asked: str = "") -> int:
        """See `Leases`."""
        self._expire()
        now, name = self._clock(), asked or policy
        leases = self._held.setdefault(rollout, {})
        lease = leases.get(name)
        if lease is not None and lease.expiry < now:
            self._unpin(lease)
            lease = None
        if lease is None:
            lease = leases[name] = self._expiries[rollout, name] = _Lease(policy, version, now)
            self._pins[policy, version] += 1
        lease.expiry = now + self._seconds
        self._expiries.move_to_end((rollout, name))
        return lease.version

    async def held(self, rollout: str, policy: str) -> int | None:
        """See `Leases`."""
        lease = self._held.get(rollout, {}).get(policy)
        return lease.version if lease is not None and lease.expiry >= self._clock() else None

    async def release(self, rollouts: Collection[str]) -> None:
        """See `Leases`."""
        for rollout in rollouts:
            for name, lease in self._held.pop(rollout, {}).items():
                del self._expiries[rollout, name]
                self._unpin(lease)

    def versions(self) -> Collection[tuple[str, int]]:
        """(policy, version) pairs that a rollout holds."""
        self._expire()
        return self._pins.keys()

    def _expire(self) -> None:
        now = self._clock()
        for _ in range(_AT_ONCE):
            if not self._expiries:
                return
            (rollout, name), lease = next(iter(self._expiries.items()))
            if lease.expiry >= now:
                return
            del self._expiries[rollout, name], self._held[rollout][name]
            if not self._held[rollout]:
                del self._held[rollout]
            self._unpin(lease)

    def _unpin(self, lease: _Lease) -> None:
        key = lease.policy, lease.version
        self._pins[key] -= 1
        if not self._pins[key]:
            del self._pins[key]
