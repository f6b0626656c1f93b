"""Adapter slots: which versions the engines hold. Gateway and jobs use the protocol; there are two implementations."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Protocol

from trainer_server.wire import ARTError

Key = tuple[str, int]
"""(policy, version)"""


class NoFreeSlot(ARTError):
    """All adapter slots are in use."""


def no_free_slot(capacity: int, seconds: float) -> NoFreeSlot:
    """The error of a request that waited for a slot so long."""
    return NoFreeSlot(
        f"all {capacity} adapter slots were in use for {seconds:.0f} s; try again, or serve with more --adapter-slots"
    )


def version_in_use(key: Key) -> NoFreeSlot:
    """The error of a deletion."""
    return NoFreeSlot(f"{adapter_name(key)} is in use by a rollout; delete it when that has ended")


def adapter_name(key: Key) -> str:
    """The name of a version on the engines. It is never reused: vLLM's prefix cache is keyed by name and path."""
    return f"{key[0]}@{key[1]}"


class Slots(Protocol):
    """The adapters on the engines. They are loaded when a request needs them, at most so many at once.

    `LocalSlots` is for one server, which is all that uses its engines. `SharedSlots` is for the servers of a fleet.
    """

    def holds(self, key: Key) -> bool:
        """Whether a version is loaded."""
        ...

    def in_use(self, key: Key) -> bool:
        """Whether a request of this server uses a version or waits for it, or a rollout that it knows is pinned to it.
        Other servers may use it too: `forget` asks them."""
        ...

    def use(self, key: Key) -> AbstractAsyncContextManager[str]:
        """Keeps an adapter loaded for the duration of a request. Loads it first if needed.

        Yields:
            The adapter's name on the engines.

        Raises:
            NoFreeSlot: All slots stayed in use.
            EngineError: No engine loaded the adapter.
        """
        ...

    async def forget(self, key: Key) -> None:
        """Unloads a version whose files will be deleted. Nobody can use it until `reopen`.

        Raises:
            NoFreeSlot: The version is in use.
        """
        ...

    async def reopen(self, key: Key) -> None:
        """Ends `forget`: the files are deleted, or stay."""
        ...

    async def drop(self, policy: str) -> None:
        """Unloads all versions of a policy, which is created again after its files were deleted by hand."""
        ...

    def mark_lost(self, key: Key) -> None:
        """Called when an engine turned out not to hold an adapter. The next request loads it again."""
        ...

    async def start(self) -> None:
        """Joins the servers that use the engines."""
        ...

    async def stop(self) -> None:
        """Leaves them."""
        ...
