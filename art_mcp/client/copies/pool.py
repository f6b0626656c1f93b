"""Makes copies of a world with running servers, some of them ahead."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from contextvars import Context

from art_mcp.client.connection.sdk import Stdio
from art_mcp.client.connection.session import Session
from art_mcp.client.copies.placing import Ready, check_files, place_server
from art_mcp.client.copies.reader import Reader
from art_mcp.worlds.change import Change
from art_mcp.worlds.world import Copy, World
from trainer_server.common.processors import processor_count
from trainer_server.wire import MCPError

AHEAD = 2
"""Copies with a running server that are made ahead, once a rollout has taken one. A start takes about half a second."""

MAX_SPARE = 16
"""Copies with a running server that are kept for the next rollouts at most, after rollouts that only read."""


class Pool:
    """Makes copies with running servers, some ahead, and as many at once as there are cores.

    Args:
        world: The open world.
        target: The server. Placeholders in its command, environment and working directory name a copy.
        timeouts: Seconds to wait for the start, and seconds to wait for each answer.
        on_change: Called when a server says that its tools have changed.

    Raises:
        ConfigError: A placeholder names no place of the world, or a path goes on after a place that is a file.
    """

    def __init__(
        self, world: World, target: Stdio, timeouts: tuple[float, float], on_change: Callable[[], None]
    ) -> None:
        for text in (*target.command, *target.env.values(), f"{target.cwd or ''}/"):
            check_files(text, world)  # before anything is copied
        self.world = world
        self._timeouts = timeouts
        self._on_change = on_change
        self._target = target
        self.reader = Reader(self._make, self.remove)
        self._kept: deque[Ready] = deque()
        self._ahead: deque[asyncio.Task[Ready]] = deque()
        self._starts = asyncio.Semaphore(processor_count())

    async def take(self, *, refill: bool = True) -> Ready:
        """A copy with a running server, for one rollout.

        Args:
            refill: Whether others are made meanwhile: the next rollouts will want them.

        Raises:
            MCPError: The copy cannot be made, or the server cannot be started in it.
        """
        while self._kept:
            spare = self._kept.pop()
            if not spare.session.ended:
                return spare
            await self.remove(spare)
        ready = self._ahead.popleft() if self._ahead else None
        try:
            while refill and len(self._ahead) < AHEAD:
                making = self._make()
                self._ahead.append(asyncio.create_task(making, name="mcp world", context=Context()))
            # Shielded: a rollout that is cancelled does not cancel the start, which the next rollout then gets.
            return await (asyncio.shield(ready) if ready else self._make())
        except asyncio.CancelledError:
            if ready and not ready.cancelled():
                self._ahead.append(ready)
            raise

    async def give_back(self, ready: Ready, as_new: bool) -> list[Change]:
        """Takes back what a rollout had.

        Args:
            ready: The copy with its server.
            as_new: Whether the server is as it was. If nothing was changed in the copy either, nothing tells both from
                new ones, and the next rollout gets them. Otherwise they are removed.

        Returns:
            What the rollout has changed. What a server writes at its end counts.
        """
        try:
            if as_new and not ready.session.ended and len(self._kept) < MAX_SPARE:
                changes = await asyncio.to_thread(ready.copy.changes)
                if not changes:
                    self._kept.append(ready)
                    return changes
            await ready.session.close()
            changes = await asyncio.to_thread(ready.copy.changes)
        except BaseException:
            await self.remove(ready)
            raise
        await self.remove(ready)
        return changes

    async def remove(self, ready: Ready) -> None:
        """Ends the server and removes the copy."""
        try:
            await ready.session.close()
        finally:
            await asyncio.to_thread(self.world.remove, ready.copy)

    async def close(self) -> None:
        """Removes what no rollout has."""
        await self.reader.close()
        making, spare = list(self._ahead), list(self._kept)
        self._ahead.clear()
        self._kept.clear()
        for task in making:
            task.cancel()
        copies = await asyncio.gather(*making, return_exceptions=True)
        await asyncio.gather(
            *map(self.remove, spare), *(self.remove(ready) for ready in copies if isinstance(ready, Ready))
        )

    async def _make(self) -> Ready:
        async with self._starts:
            began = time.monotonic()
            copy = await self._copy()
            try:
                placing = asyncio.ensure_future(asyncio.to_thread(place_server, self._target, copy))
                try:
                    target = await asyncio.shield(placing)
                except asyncio.CancelledError:  # the thread goes on writing into the copy, which is removed
                    await asyncio.gather(placing, return_exceptions=True)
                    raise
                session = await self.start_session(target)
                try:
                    await asyncio.to_thread(copy.begin)
                except BaseException:
                    await session.close()
                    raise
            except BaseException as error:
                await asyncio.to_thread(self.world.remove, copy)
                if isinstance(error, MCPError):
                    raise MCPError(_explain_failure(copy, error), failure=error.failure, code=error.code) from None
                raise
            self.world.fastest_start = min(self.world.fastest_start, time.monotonic() - began)
            return Ready(copy, target, session)

    async def start_session(self, target: Stdio) -> Session:
        """Starts a server. Raises MCPError."""
        session = Session(target, self._timeouts, self._on_change)
        await session.open()
        return session

    async def _copy(self) -> Copy:
        """A copy. A thread cannot be cancelled: what it made for nobody is removed."""
        copying = asyncio.ensure_future(asyncio.to_thread(self.world.copy))
        try:
            return await asyncio.shield(copying)
        except OSError as error:
            raise MCPError(f"the world cannot be copied: {error}", failure="closed") from None
        except asyncio.CancelledError:
            [copy] = await asyncio.gather(copying, return_exceptions=True)
            if isinstance(copy, Copy):
                await asyncio.to_thread(self.world.remove, copy)
            raise


def _explain_failure(copy: Copy, error: MCPError) -> str:
    """The error of a start, with what is special about it."""
    return (
        f"{copy.from_copy(str(error))}. It was started in a copy of the world, in {copy.from_copy(str(copy.home))}: "
        "name the other files that it needs by absolute paths"
    )
