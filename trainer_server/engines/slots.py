"""Adapter slots: which versions the engines hold. Gateway and jobs use the protocol; there are two implementations."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Protocol

from trainer_server.wire import ARTError

Key = tuple[str, int]
"""(policy, version)"""


class NoFreeSlot(ARTError):
    """All adapter slots are in use."""


def adapter_name(key: Key) -> str:
    """The name of a version on the engines. It is never reused: vLLM's prefix cache is keyed by name and path."""
    return f"{key[0]}@{key[1]}"


class Slots(Protocol):
    """The adapters on the engines. They are loaded when they are asked for, at most so many at once.

    `LocalSlots` is for one server, which is all that uses its engines. `SharedSlots` is for the servers of a fleet.
    """

    def holds(self, key: Key) -> bool:
        """Whether a version is loaded."""
        ...

    def in_use(self, key: Key) -> bool:
        """Whether a request of this server uses a version or waits for it, or a rollout that it knows is pinned to it.
        What others do, only `forget` knows."""
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
        """Notes that an engine no longer holds an adapter. The next request loads it again."""
        ...

    async def start(self) -> None:
        """Begins to take part."""
        ...

    async def stop(self) -> None:
        """Ends it."""
        ...
