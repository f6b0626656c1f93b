"""Groups that are made all the time, many at once, while steps take those that are complete."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from art_langgraph.loop.hints import Rescue
from art_langgraph.trajectory import TrajectoryGroup


@dataclass(slots=True)
class CompleteGroup:
    """A group whose runs have all ended.

    Args:
        group: The runs.
        start: When the group began, by `time.monotonic`.
        end: When it was complete.
        exploration_count: How many of its runs were added at a higher temperature.
        timeout_count: How many runs are left out because they ran over `timeout`.
        rescue: What came of hints; None: none are given.
        slot_seconds: How long each of its runs waited for a slot.
    """

    group: TrajectoryGroup
    start: float
    end: float
    exploration_count: int = 0
    timeout_count: int = 0
    rescue: Rescue | None = None
    slot_seconds: list[float] = field(default_factory=list)


class GroupStream:
    """Makes groups while there is room for them, and has a queue of those that are complete: `async with` around it.

    A group begins when a slot is free, so that its runs get the newest version that they can. Until then nothing of it
    exists. Leaving the block cancels the groups that still run.

    Args:
        make: Makes the next group. It calls its argument when the first run has a slot.
        limit: The slots: how many runs there are at once, together with those of evaluations.
        in_flight: How many groups run at once, at most.
    """

    def __init__(
        self,
        make: Callable[[Callable[[], None]], Awaitable[CompleteGroup]],
        limit: asyncio.Semaphore,
        in_flight: int,
    ) -> None:
        self._make, self._limit, self._in_flight = make, limit, in_flight
        self._room = 0
        self._running = set[asyncio.Task[CompleteGroup]]()
        self._queue = deque[CompleteGroup]()
        self._failure: BaseException | None = None
        self.waits = dict.fromkeys(("slots", "in_flight", "room"), 0.0)
        """Seconds that the next group waited, by what it waited for: "slots", "in_flight", or "room"."""
        self._change = asyncio.Event()
        """Wakes whoever waits; each looks whether what it waits for has come."""

    def allow(self, room: int) -> None:
        """Says how many groups there may be, those that run and those in the queue together."""
        self._room = room
        self._change.set()

    def put(self, groups: Iterable[CompleteGroup]) -> None:
        """Puts groups into the queue that were complete before."""
        self._queue.extend(groups)
        self._change.set()

    async def take(self) -> CompleteGroup:
        """Waits for a complete group, and takes it out of the queue: the one that was complete first.

        Raises:
            Exception: What a group raised that could not be made. No group is made after it.
        """
        while not self._queue or self._failure is not None:
            if self._failure is not None:
                raise self._failure
            await self._wait_for_change()
        group = self._queue.popleft()
        self._change.set()
        return group

    async def _wait_for_change(self) -> None:
        self._change.clear()
        await self._change.wait()

    @property
    def _has_room(self) -> bool:
        count = len(self._running)
        return self._failure is None and count < self._in_flight and count + len(self._queue) < self._room

    async def _produce(self) -> None:
        while True:
            while not self._has_room:
                start, is_full = time.monotonic(), len(self._running) >= self._in_flight
                await self._wait_for_change()
                self.waits["in_flight" if is_full else "room"] += time.monotonic() - start
            start = time.monotonic()
            async with self._limit:  # the line of the semaphore is fair: those who wait already come first
                pass
            self.waits["slots"] += time.monotonic() - start
            if not self._has_room:
                continue
            begin = asyncio.Event()
            task = asyncio.ensure_future(self._make(begin.set))
            self._running.add(task)
            task.add_done_callback(self._end)
            task.add_done_callback(lambda _, begin=begin: begin.set())  # type: ignore[misc]
            await begin.wait()  # its other runs stand in line by now, before the next group

    def _end(self, task: asyncio.Task[CompleteGroup]) -> None:
        self._running.discard(task)
        if task.cancelled():
            return
        if (error := task.exception()) is not None:
            self._failure = self._failure or error
        else:
            self._queue.append(task.result())
        self._change.set()

    async def __aenter__(self) -> Self:
        self._producer = asyncio.create_task(self._produce(), name="groups")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        tasks = [self._producer, *self._running]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
