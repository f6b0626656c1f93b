"""A live MCP server, and what each rollout has of it: the session that all share, or one of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol

from art_langgraph.capture.scope import Scope, current
from art_mcp.client.connection.sdk import Progress
from art_mcp.worlds.change import Change
from trainer_server.wire import MCPError

Isolation = Literal["shared", "session"]
"""See `connect`."""


class Source(Protocol):
    """Answers requests: a live server, a part of it for one rollout, or a cassette. Every wait has a timeout."""

    async def request(self, method: str, params: Mapping[str, Any], progress: Progress | None = None) -> dict[str, Any]:
        """Answers a request as `Channel.request` does. Raises MCPError."""
        ...

    async def changes(self) -> list[Change] | None:
        """What the calls of the current rollout have changed so far. None: nobody knows."""
        ...

    async def rewind(self) -> bool:
        """Notes what the world of the current rollout has, the first time, and later puts that back, while the server
        runs on. False: that is not possible."""
        ...

    async def close(self) -> None:
        """Ends what the source has opened."""
        ...


class Live:
    """A live server.

    Args:
        make_source: Makes a connection for a rollout, or the one that is shared (None).
        isolation: "shared": all rollouts share a connection. "session": each has its own, which ends with it.
    """

    def __init__(self, make_source: Callable[[Scope | None], Source], isolation: Isolation) -> None:
        self._connected = make_source
        self._isolation = isolation
        self._connections: dict[str, Source] = {}
        self._closed = False

    async def request(self, method: str, params: Mapping[str, Any], progress: Progress | None = None) -> dict[str, Any]:
        """Sends a request over the connection of the current rollout, or over the shared one. Raises MCPError."""
        return await self._connection().request(method, params, progress)

    async def changes(self) -> list[Change] | None:
        """What the current rollout has changed so far, or the calls outside of rollouts. None: nobody knows."""
        return await self._connection().changes()

    async def rewind(self) -> bool:
        """Puts the world of the current rollout back. False: that is not possible."""
        return await self._connection().rewind()

    async def close(self) -> None:
        """Ends all connections."""
        self._closed = True
        await asyncio.gather(*map(self._end, list(self._connections)))

    def _connection(self) -> Source:
        if self._closed:
            raise MCPError("its connection has been left", failure="closed")
        rollout = ending_rollout() if self._isolation == "session" else None
        key = rollout.rollout_id if rollout else ""
        if key not in self._connections:
            self._connections[key] = self._connected(rollout)
            if rollout and rollout.exits:
                rollout.exits.push_async_callback(self._end, key)
        return self._connections[key]

    async def _end(self, key: str) -> None:
        if connection := self._connections.pop(key, None):
            await connection.close()


def ending_rollout() -> Scope | None:
    """The current rollout, if it closes resources at its end. None: there is none, or it does not."""
    scope = current()
    return scope if scope and scope.exits else None
