"""What the servers of a fleet share besides the ledger: adapter slots, leases, and what the policies' names mean.

A fleet is all servers that use one database. Each of them answers requests; one also trains, and is the only writer of
the names' meanings. All are equal otherwise: each may load and unload adapters.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

Key = tuple[str, int]
"""(policy, version)"""


@dataclass(frozen=True, slots=True)
class Claim:
    """What became of one try to hold a slot.

    Args:
        granted: Whether this server holds the slot from now on.
        empty_slots: Slots that were cleared for this server, and that no server holds any more. It must unload their
            adapters and say so (`empty_slots`).
        expelled: Whether the others took this server for dead, so that it holds nothing any more: it must beat first.
    """

    granted: bool = False
    empty_slots: tuple[Key, ...] = ()
    expelled: bool = False


@dataclass(frozen=True, slots=True)
class Beat:
    """The answer to a server that reports that it is alive.

    Args:
        expelled: Whether the others took this server for dead, so that it holds nothing any more.
        slots: All slots.
        wanted_back: Slots that this server holds, and that another server, or this one, wants to clear; for each the
            number of the hold, which is another one after each claim.
    """

    expelled: bool
    slots: frozenset[Key]
    wanted_back: Mapping[Key, int]


class SharedGateways(Protocol):
    """Which servers there are, and the slots that they hold. All methods raise LedgerError when the database does not
    answer for 15 seconds.

    A slot is a version that the engines have, or are about to have. A server *holds* a slot while it may send requests
    for that version. A slot can be cleared once no server holds it. A server that has not beaten for `term` seconds
    holds nothing any more.
    """

    term: float

    async def beat(self, busy: Collection[Key]) -> Beat:
        """Reports that this server is alive. It must do so several times in each `term`.

        Args:
            busy: Versions for which it has requests under way.
        """
        ...

    async def claim(self, key: Key, capacity: int, *, clear: bool) -> Claim:
        """Tries to hold the slot of a version, and makes the slot if there is room.

        Args:
            key: The version.
            capacity: How many slots there may be.
            clear: Whether to choose a slot to be cleared, if there is no room.
        """
        ...

    async def settle(self, closed_keys: Collection[Key]) -> None:
        """Slots that were to be cleared for this server may be held again, but for those that it has closed."""
        ...

    async def give_back(self, key: Key, number: int) -> None:
        """This server holds a slot no longer, unless it has claimed it again since the beat that had the number."""
        ...

    async def drop(self, key: Key) -> None:
        """This server holds a slot no longer, because its adapter could not be loaded."""
        ...

    async def close(self, key: Key) -> str | None:
        """Nobody can hold the slot of a version from now on, until it is `emptied`: its files will be deleted.

        Returns:
            Why that cannot be; None: it is so, and the next beat of each holder has the slot in `wanted_back`.
        """
        ...

    async def holders(self, key: Key) -> int:
        """How many servers hold a slot."""
        ...

    async def delete_slot(self, key: Key) -> None:
        """The engines have the version no more. Deletes its slot, if it was cleared or closed by this server."""
        ...

    async def clear(self) -> None:
        """Nobody holds anything, and there are no slots: the engines have no adapters."""
        ...

    async def leave(self) -> None:
        """This server ends: it holds nothing any more, and frees its resources. Failures are logged."""
        ...


class SharedPins(Protocol):
    """Leases and the meanings of names. All methods raise LedgerError when the database does not answer for 15 seconds.
    Time is that of the database."""

    async def pin(self, rollout: str, name: str, key: Key, seconds: float) -> int:
        """The version that a rollout holds by a name; from now on the given one, if it holds none. Renews the lease."""
        ...

    async def held_version(self, rollout: str, name: str) -> int | None:
        """The version that a rollout holds by a name; None: it holds none."""
        ...

    async def release(self, rollouts: Collection[str]) -> None:
        """Ends the leases of rollouts."""
        ...

    async def purge(self) -> None:
        """Deletes leases that have expired."""
        ...

    async def publish(self, meanings: Mapping[str, str | None]) -> None:
        """Writes down what names mean; see `PolicyNames`. None: nothing any more."""
        ...

    async def meaning(self, policy: str) -> str | None:
        """What was written down last of a policy's name."""
        ...

    async def meanings(self) -> dict[str, str]:
        """The same of all policies."""
        ...


@dataclass(frozen=True, slots=True)
class Fleet:
    """The parts of what servers share.

    Args:
        gateways: Servers and slots.
        pins: Leases and names.
    """

    gateways: SharedGateways
    pins: SharedPins
