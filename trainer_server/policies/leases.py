"""Leases: all completions of a rollout come from one version of a policy, also when newer versions come meanwhile."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from trainer_server.ledger.fleet import SharedPins

_SPANS = 16
"""Spans in the length of a lease."""


class _Lease(NamedTuple):
    """That a rollout gets a version of a policy by a name: the policy's, or `agent@latest`."""

    name: str
    policy: str
    version: int


@dataclass(eq=False, slots=True)
class _Holding:
    """What some rollouts of a span hold, and how many."""

    leases: tuple[_Lease, ...]
    rollouts: int = 0


@dataclass(eq=False, slots=True)
class _Span:
    """Rollouts whose last call was in one part of the time."""

    start: float
    rollouts: dict[str, _Holding] = field(default_factory=dict)
    holdings: dict[tuple[_Lease, ...], _Holding] = field(default_factory=dict)

    def add(self, rollout: str, leases: tuple[_Lease, ...]) -> None:
        holding = self.rollouts[rollout] = self.holdings.setdefault(leases, _Holding(leases))
        holding.rollouts += 1

    def take(self, rollout: str) -> tuple[_Lease, ...]:
        holding = self.rollouts.pop(rollout)
        holding.rollouts -= 1
        if not holding.rollouts:
            del self.holdings[holding.leases]
        return holding.leases


class Leases(Protocol):
    """A rollout holds a version for some time from its last call, or until it is released.

    `LocalLeases` are those of one server. `SharedLeases` are those of a fleet; their methods raise LedgerError.
    """

    async def pin(self, rollout: str, policy: str, version: int, *, requested_name: str = "") -> int:
        """The version of this rollout: the one that it holds, or from now on the given one.

        Args:
            rollout: Id of the rollout.
            policy: Name of the policy.
            version: What the name means now.
            requested_name: The name that the rollout asked for, where that is another than the policy's: `agent@latest`
                has a lease of its own.
        """
        ...

    async def held_version(self, rollout: str, policy: str) -> int | None:
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

    async def pin(self, rollout: str, policy: str, version: int, *, requested_name: str = "") -> int:
        return await self._pins.pin(rollout, requested_name or policy, (policy, version), self._seconds)

    async def held_version(self, rollout: str, policy: str) -> int | None:
        return await self._pins.held_version(rollout, policy)

    async def release(self, rollouts: Collection[str]) -> None:
        await self._pins.release(rollouts)


class LocalLeases:
    """The leases of one server, in memory; see `Leases`. Each call of a rollout renews all leases that it has.

    A rollout stands in a span: all rollouts whose last call was within the same sixteenth of a lease's length. A span
    is dropped as a whole, so a lease lasts up to a sixteenth longer. A call costs the same however many leases there
    are. A lease takes about 110 bytes besides the rollout's id, so that clients which go away and release nothing take
    little of the memory: rollouts of one span that hold the same versions share what says so.

    Args:
        seconds: How long a lease is.
        clock: Tells the time, in seconds.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._spans: deque[_Span] = deque()
        """The newest last."""

    async def pin(self, rollout: str, policy: str, version: int, *, requested_name: str = "") -> int:
        """See `Leases`."""
        now, name = self._now(), requested_name or policy
        leases = self._take(rollout)
        for lease in leases:
            if lease.name == name:
                version = lease.version
                break
        else:
            leases = *leases, _Lease(name, policy, version)
        if not self._spans or now - self._spans[-1].start >= self._seconds / _SPANS:
            self._spans.append(_Span(now))
        self._spans[-1].add(rollout, leases)
        return version

    async def held_version(self, rollout: str, policy: str) -> int | None:
        """See `Leases`."""
        self._now()
        for span in self._spans:
            if (holding := span.rollouts.get(rollout)) is not None:
                return next((lease.version for lease in holding.leases if lease.name == policy), None)
        return None

    async def release(self, rollouts: Collection[str]) -> None:
        """See `Leases`."""
        for rollout in rollouts:
            self._take(rollout)

    def versions(self) -> Collection[tuple[str, int]]:
        """(policy, version) pairs that a rollout holds."""
        self._now()
        return {(lease.policy, lease.version) for span in self._spans for leases in span.holdings for lease in leases}

    def _now(self) -> float:
        """The time. Spans are dropped whose last lease has expired by then."""
        now = self._clock()
        while self._spans and now - self._spans[0].start > self._seconds * (1 + 1 / _SPANS):
            self._spans.popleft()
        return now

    def _take(self, rollout: str) -> tuple[_Lease, ...]:
        """What a rollout holds, taken from its span; empty: nothing."""
        for span in reversed(self._spans):
            if rollout in span.rollouts:
                return span.take(rollout)
        return ()
