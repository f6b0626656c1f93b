"""A server in a copy of a world, for each rollout that changes something."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

from art_langgraph.capture.scope import Scope
from art_mcp.client.connection.sdk import Progress
from art_mcp.client.copies.placing import Ready
from art_mcp.client.copies.pool import Pool
from art_mcp.worlds.alias import alias
from art_mcp.worlds.change import Change
from art_mcp.worlds.world import World
from trainer_server.wire import MCPError

WORLD_KEY = "world"
"""Key of a trajectory's metadata. Its value has `changes`, what the run changed in its world."""


class InWorld:
    """The connection of one rollout: a server in a copy of its own, once it calls a tool that may change something.

    The rollout sees aliases instead of the copy's paths, in arguments and in answers. At its end, what it changed goes
    to its metadata. A server that ends is started again in the same copy. Until a rollout calls a tool that may change
    something, it may read where all others read (`Reader`). A rollout that called only tools that only read, and
    changed nothing, leaves its copy and its server to the next one.

    Args:
        pool: Makes the copy.
        rollout: The rollout. None: the calls outside of rollouts.
        shares: Whether the rollout may read where others read. Otherwise its first call starts a server of its own.
    """

    def __init__(self, pool: Pool, rollout: Scope | None, *, shares: bool) -> None:
        self._pool = pool
        self._rollout = rollout
        self._shares = shares
        self._ready: Ready | None = None
        self._has_read = False
        self._as_new = True
        self._closed = False
        self._lock = asyncio.Lock()

    async def request(self, method: str, params: Mapping[str, Any], progress: Progress | None = None) -> dict[str, Any]:
        """Sends a request to the server in the copy. Raises MCPError."""
        reader = self._pool.reader
        reads = method == "tools/call" and reader.reads(params["name"])
        again = False
        if reads and self._shares and self._rollout and self._ready is None and not self._closed:
            _claim(self._rollout, self._pool.world)
            if (answer := await reader.call(params, progress)) is not None:
                self._has_read = True
                return answer
            again = True
        ready = await self._ensure_ready()
        before, self._as_new = self._as_new, self._as_new and (reads or method != "tools/call")
        try:
            answer = await ready.request(method, params, progress)
        except asyncio.CancelledError:
            self._as_new = False
            raise
        except MCPError as error:
            self._as_new &= error.failure == "protocol"  # otherwise it may be at work still
            raise
        if answer.get("isError"):  # it did nothing; whether it changed something in the copy is looked at in the end
            self._as_new = before
        if method == "tools/list":
            reader.learn(answer.get("tools", []))
        if again and (changes := await self.changes()):  # this was the first call in the copy
            reader.blame(params["name"], changes[0])
        return answer

    async def changes(self) -> list[Change]:
        """What was changed in the copy so far."""
        return await asyncio.to_thread(self._ready.copy.changes) if self._ready else []

    async def rewind(self) -> bool:
        """Notes what the copy has, the first time, and later puts that back. False: it still differs, or cannot be put
        back, or no server can be started there."""
        try:
            ready = await self._ensure_ready()
            await asyncio.to_thread(ready.copy.rewind)
        except (OSError, MCPError):
            return False
        return not await self.changes()

    async def close(self) -> None:
        """Notes what the rollout changed, and gives the copy back."""
        self._closed = True
        ready, self._ready = self._ready, None
        changes = await self._pool.give_back(ready, self._as_new) if ready else []
        if self._rollout and (ready or self._has_read):
            record = self._rollout.metadata.setdefault(WORLD_KEY, {"changes": []})
            record["changes"] += [change.model_dump(mode="json") for change in changes]

    async def _ensure_ready(self) -> Ready:
        """The copy with an open session."""
        async with self._lock:
            if self._ready is None and not self._closed:
                if self._rollout:
                    _claim(self._rollout, self._pool.world)
                self._ready = await self._pool.take(refill=self._rollout is not None)
            elif self._ready and self._ready.session.ended:
                self._ready = replace(self._ready, session=await self._pool.start_session(self._ready.target))
            if self._ready is None or self._closed:  # also while it was made
                await self.close()
                raise MCPError("the rollout that called it is over", failure="closed")
            return self._ready


_worlds: WeakKeyDictionary[Scope, dict[str, World]] = WeakKeyDictionary()
"""By rollout, the worlds that it works in, by the names of their places."""


def _claim(rollout: Scope, world: World) -> None:
    """Notes that a rollout works in a world. Raises MCPError if it has a place of the same name in another world: its
    model, and the record of its changes, could not tell them apart."""
    worlds = _worlds.setdefault(rollout, {})
    for place in world.places:
        if worlds.setdefault(place.name, world) is not world:
            raise MCPError(
                f"two servers of the rollout have a world at {alias(place)}: give one of them another name, as in "
                f"--world NAME={place.original}",
                failure="closed",
            )
