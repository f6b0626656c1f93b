"""The slots of one server: an LRU cache of adapters, which queues requests while all slots are in use."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from pathlib import Path

from trainer_server.engines.pool import Engines
from trainer_server.engines.slots import Key, adapter_name, no_free_slot, version_in_use
from trainer_server.process import faults


class LocalSlots:
    """The `Slots` of one server: an LRU cache of adapters, each on every engine, at most `capacity` at once.

    Requests for loaded adapters do not wait. Requests for one other adapter share one place in the queue. When all
    slots are in use, the adapter whose last request is the oldest takes no new requests and drains. So policies take
    turns when there are more policies than slots.

    Args:
        engines: Where adapters are loaded.
        capacity: Adapters that are loaded at once.
        directory: The directory of a version.
        pinned_versions: The versions that running rollouts are pinned to. Their slots are taken only when no other slot
            is idle.
        is_named: Whether a policy's name means this version. Slots of older versions are taken first.
        wait: Seconds that a request waits for a slot. Time in which its adapter loads or engines rest does not count.
        patience: Seconds after which the next adapter drains too: the first adapter may have a long answer to finish.
    """

    def __init__(
        self,
        *,
        engines: Engines,
        capacity: int,
        directory: Callable[[str, int], Path],
        pinned_versions: Callable[[], Collection[Key]],
        is_named: Callable[[Key], bool],
        wait: float = 60.0,
        patience: float = 5.0,
    ) -> None:
        self._engines = engines
        self._capacity = capacity
        self._directory, self._pinned_versions, self._is_named = directory, pinned_versions, is_named
        self._wait, self._patience = wait, patience
        self._adapters: OrderedDict[Key, None] = OrderedDict()  # least recently used first
        self._in_use: Counter[Key] = Counter()
        self._queue = asyncio.Lock()  # first come, first served
        self._loads: dict[Key, asyncio.Task[None]] = {}
        self._waiting: Counter[Key] = Counter()
        self._loading: Key | None = None
        self._draining: set[Key] = set()
        self._slot_free = asyncio.Event()

    def holds(self, key: Key) -> bool:
        return key in self._adapters

    def in_use(self, key: Key) -> bool:
        return self._in_use[key] > 0 or self._waiting[key] > 0 or key in self._pinned_versions()

    @asynccontextmanager
    async def use(self, key: Key) -> AsyncIterator[str]:
        if key in self._adapters and key not in self._draining:
            self._in_use[key] += 1
        else:
            await self._wait_for_slot(key)
        try:
            if key in self._adapters:  # else an engine lost it just now
                self._adapters.move_to_end(key)
            yield adapter_name(key)
        finally:
            self._leave(key)

    async def forget(self, key: Key) -> None:
        try:
            async with asyncio.timeout(self._wait), self._queue:
                if self.in_use(key):
                    raise version_in_use(key)
                await self._unload(key)
        except TimeoutError:
            raise version_in_use(key) from None

    async def reopen(self, key: Key) -> None:
        pass  # nothing is closed: what follows `forget` without waiting cannot be overtaken

    async def start(self) -> None:
        pass

    async def stop(self) -> None:
        pass

    async def drop(self, policy: str) -> None:
        async with self._queue:
            for key in [key for key in self._adapters if key[0] == policy]:
                await self._unload(key)

    def mark_lost(self, key: Key) -> None:
        self._adapters.pop(key, None)
        self._slot_free.set()

    async def _wait_for_slot(self, key: Key) -> None:
        """Returns once the adapter is loaded and counted as in use."""
        if key not in self._loads:
            self._loads[key] = asyncio.create_task(self._load_in_turn(key))
        loading = self._loads[key]
        self._waiting[key] += 1
        try:
            while not (await asyncio.wait({loading}, timeout=self._wait))[0]:
                if key != self._loading and not self._engines.resting:
                    raise no_free_slot(self._capacity, self._wait)
            await loading
        except BaseException:
            if loading.done() and not loading.cancelled() and not loading.exception():
                self._leave(key)  # it was counted as in use just now
            elif self._loads.get(key) is loading:
                self._waiting[key] -= 1
                if not self._waiting[key]:
                    del self._loads[key]
                    loading.cancel()
            raise

    async def _load_in_turn(self, key: Key) -> None:
        """Loads an adapter when its turn comes, and counts all requests that wait for it as using it."""
        try:
            async with self._queue:
                if key not in self._adapters:
                    await self._make_room()
                    await self._load(key)
                self._in_use[key] += self._waiting[key]
        finally:
            if self._loads.get(key) is asyncio.current_task():
                del self._loads[key], self._waiting[key]

    async def _load(self, key: Key) -> None:
        self._loading = key
        try:
            faults.point("loading")
            await self._engines.load(adapter_name(key), self._directory(*key))
            faults.point("loaded")
            self._adapters[key] = None
        finally:
            self._loading = None

    def _leave(self, key: Key) -> None:
        self._in_use[key] -= 1
        if not self._in_use[key]:
            del self._in_use[key]
            self._slot_free.set()

    async def _make_room(self) -> None:
        try:
            while len(self._adapters) >= self._capacity:
                if (victim := self._least_needed()) is not None:
                    await self._unload(victim)
                    continue
                others = [key for key in self._adapters if key not in self._draining]
                self._draining.update(others[:1])
                self._slot_free.clear()
                try:
                    await asyncio.wait_for(self._slot_free.wait(), self._patience)
                except TimeoutError:
                    pass
        finally:
            self._draining.clear()

    async def _unload(self, key: Key) -> None:
        if key in self._adapters:
            del self._adapters[key]
            await self._engines.unload(adapter_name(key))

    def _least_needed(self) -> Key | None:
        """The adapter to unload next; None if requests use all adapters.

        Of the idle adapters, those that no rollout is pinned to come first, then old versions, then the least recently
        used. A pinned adapter is loaded again at its rollout's next call: a pin protects files, not slots.
        """
        pins = self._pinned_versions()
        idle = [key for key in self._adapters if not self._in_use[key]]
        return min(idle, key=lambda key: (key in pins, self._is_named(key)), default=None)
