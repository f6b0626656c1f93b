"""A server in a copy that nobody changes. All rollouts read there."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from art_mcp.client.connection.sdk import Progress
from art_mcp.client.copies.placing import Ready
from art_mcp.client.effects import readers
from art_mcp.worlds.change import Change
from trainer_server.wire import MCPError

log = logging.getLogger("art_mcp")


class Reader:
    """Answers calls of tools that only read, for all rollouts, from one server in a copy of its own.

    A start of a server costs about as much as ten answers of a small model. Rollouts that only read need none.

    A tool may change something although it says that it only reads, or end the server for all who use it. So the copy
    is looked at after each call, and a call that may have seen a change is not answered: the rollout makes it again
    in a copy of its own. The same holds for calls that are cut off or last too long. The next call gets a new copy.

    Args:
        make: Makes a copy with a running server.
        remove: Ends the server and removes the copy.
    """

    def __init__(self, make: Callable[[], Awaitable[Ready]], remove: Callable[[Ready], Awaitable[None]]) -> None:
        self._make, self._remove = make, remove
        self._ready: Ready | None = None
        self._lock = asyncio.Lock()
        self._tools: set[str] = set()
        self._changing: set[str] = set()
        """Tools that have changed something although they say that they only read."""
        self._closed = False

    def learn(self, tools: list[dict[str, Any]]) -> None:
        """Notes which tools only read, from an answer to `tools/list`."""
        self._tools |= readers(tools)

    def reads(self, tool: str) -> bool:
        """Whether a tool only reads, as far as is known."""
        return tool in self._tools and tool not in self._changing

    async def call(self, params: Mapping[str, Any], progress: Progress | None) -> dict[str, Any] | None:
        """Calls a tool that only reads.

        Args:
            params: Those of `tools/call`.
            progress: Called with progress messages of the server.

        Returns:
            The answer. None: it cannot be relied on, and the rollout must make the call in a copy of its own.

        Raises:
            MCPError: The server refused the call, or cannot be started.
        """
        ready = await self._ensure_ready()
        try:
            answer = await ready.request("tools/call", params, progress)
        except MCPError as error:
            if error.failure == "protocol" and not await self._changed(ready):
                raise
            await self._retire(ready)
            return None
        return None if await self._changed(ready) else answer

    def blame(self, tool: str, change: Change) -> None:
        """Notes that a tool that says that it only reads has changed something, in a copy where no other call was made.

        Args:
            tool: The tool.
            change: What it changed.
        """
        if tool not in self._changing:
            self._changing.add(tool)
            log.warning("%s says that it only reads, but it changed something: %s", tool, change)

    async def close(self) -> None:
        """Ends the server and removes its copy."""
        self._closed = True
        if self._ready:
            await self._retire(self._ready)

    async def _ensure_ready(self) -> Ready:
        async with self._lock:
            if self._ready and self._ready.session.ended:
                await self._retire(self._ready)
            if self._ready is None:
                self._ready = await self._make()
            if self._closed:  # also while it was made
                await self._retire(self._ready)
                raise MCPError("its connection has been left", failure="closed")
            return self._ready

    async def _changed(self, ready: Ready) -> bool:
        """Whether something was changed in the copy, which is then used no more, or another call has seen a change."""
        try:
            changes = await asyncio.to_thread(ready.copy.changes) if self._ready is ready else []
            if changes:
                await self._retire(ready)
        except OSError:  # it was removed meanwhile
            return True
        return self._ready is not ready

    async def _retire(self, ready: Ready) -> None:
        """Takes a copy out of use. Calls that are still at work there fail, and are made again."""
        if self._ready is ready:
            self._ready = None
            await self._remove(ready)
