"""Which adapters the engines hold: loaded when asked for; who needs room waits in line, and the idlest one makes it."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from trainer_server.engines.pool import Engines
from trainer_server.policies.leases import Leases
from trainer_server.policies.store import AdapterStore
from trainer_server.process import faults
from trainer_server.wire import ARTError

Key = tuple[str, int]
"""(policy, version)"""


class NoFreeSlot(ARTError):
    """Every adapter that the engines hold is in use."""


def adapter_name(key: Key) -> str:
    """What vLLM calls a version. Never reused: its prefix cache is keyed by name and path."""
    return f"{key[0]}@{key[1]}"


class Slots:
    """Keeps each wanted adapter loaded on every engine, at most `capacity` at once.

    wait: seconds that a request stands in line for a slot, less what its adapter takes to load and engines that rest
    take to be back. Requests for adapters that are loaded do not stand in line, and those for one adapter stand in it
    once. When all slots are in use, the adapter that was asked for longest ago takes no new requests and drains, so
    that more policies than slots take turns. patience: seconds after which the next one drains too: the first may be
    in the middle of a long answer.
    """

    def __init__(
        self, store: AdapterStore, engines: Engines, leases: Leases, capacity: int, *, wait: float = 60.0,
        patience: float = 5.0,
    ) -> None:  # fmt: skip
        self._store = store
        self._engines = engines
        self._leases = leases
        self._capacity = capacity
        self._wait, self._patience = wait, patience
        self._loaded: OrderedDict[Key, None] = OrderedDict()  # least recently used first
        self._in_use: Counter[Key] = Counter()
        self._line = asyncio.Lock()  # first come, first served
        self._coming: dict[Key, asyncio.Task[None]] = {}
        self._waiting: Counter[Key] = Counter()
        self._loading: Key | None = None
        self._draining: set[Key] = set()
        self._freed = asyncio.Event()
        self.newest: dict[str, int] = {}
        """By policy: the version that its name means. Set once the engines hold that version."""
        self.unserved: dict[str, str] = {}
        """Policies that this server cannot serve, and why."""

    def holds(self, key: Key) -> bool:
        return key in self._loaded

    def explain(self, key: Key) -> str | None:
        """Why a version cannot be loaded, from its files; None when it is not their fault. A newest version that is
        broken is set aside: what its policy's name means must not depend on anybody's noticing."""
        why = self._store.problem(*key)
        if why is None:
            return None
        if self.newest.get(key[0]) != key[1]:
            return f"{adapter_name(key)} cannot be served: {why}. Ask for another version of it (/v1/models)."
        if key[1] not in self._store.set_aside(key[0]):
            why = self._store.put_aside(*key, why)
        self.step_back(key[0])
        return why

    def step_back(self, policy: str) -> None:
        """Where the newest version was set aside, a policy's name means the one before it."""
        newest = self.newest.get(policy)
        if newest is not None and newest in self._store.set_aside(policy):
            before = [number for number in self._store.versions(policy) if number < newest]
            if before:
                self.newest[policy] = before[-1]
            else:
                del self.newest[policy]

    def in_use(self, key: Key) -> bool:
        """Whether a request or a rollout needs a version, or stands in line for it."""
        return self._in_use[key] > 0 or self._waiting[key] > 0 or key in self._leases.versions()

    @asynccontextmanager
    async def use(self, key: Key) -> AsyncIterator[str]:
        """Holds an adapter for the length of a request; gives its name in vLLM. Raises NoFreeSlot, EngineError."""
        if key in self._loaded and key not in self._draining:
            self._in_use[key] += 1
        else:
            await self._stand_in_line(key)
        try:
            if key in self._loaded:  # else it was lost just now
                self._loaded.move_to_end(key)
            yield adapter_name(key)
        finally:
            self._leave(key)

    async def publish(self, key: Key) -> None:
        """Loads a new version everywhere, then makes the policy's name mean it. Raises NoFreeSlot, EngineError."""
        async with self.use(key):
            self.newest[key[0]] = max(key[1], self.newest.get(key[0], 0))

    async def forget(self, key: Key) -> None:
        """Unloads a version whose files are about to go. Raises NoFreeSlot when it is in use."""
        in_use = NoFreeSlot(f"{adapter_name(key)} is in use by a rollout; delete it when that has ended")
        try:
            async with asyncio.timeout(self._wait), self._line:
                if self.in_use(key):
                    raise in_use
                await self._unload(key)
        except TimeoutError:
            raise in_use from None

    async def drop(self, policy: str) -> None:
        """Lets go of what is held under the name of a policy that is new: of one that was deleted by hand."""
        self.newest.pop(policy, None)
        async with self._line:
            for key in [key for key in self._loaded if key[0] == policy]:
                await self._unload(key)

    def lost(self, key: Key) -> None:
        """An engine says that it does not hold it: the next request loads it again, or learns why not."""
        self._loaded.pop(key, None)
        self._freed.set()

    async def _stand_in_line(self, key: Key) -> None:
        """Returns once the adapter is loaded and counted as in use."""
        if key not in self._coming:
            self._coming[key] = asyncio.create_task(self._bring(key))
        coming = self._coming[key]
        self._waiting[key] += 1
        try:
            while not (await asyncio.wait({coming}, timeout=self._wait))[0]:
                if key != self._loading and not self._engines.resting:
                    raise NoFreeSlot(
                        f"all {self._capacity} adapter slots were in use for {self._wait:.0f} s; try again, or serve "
                        "with more --adapter-slots"
                    )
            await coming
        except BaseException:
            if coming.done() and not coming.cancelled() and not coming.exception():
                self._leave(key)  # it was let in just now
            elif self._coming.get(key) is coming:
                self._waiting[key] -= 1
                if not self._waiting[key]:
                    del self._coming[key]
                    coming.cancel()
            raise

    async def _bring(self, key: Key) -> None:
        """Loads an adapter in its turn, and lets in all who wait for it."""
        try:
            async with self._line:
                if key not in self._loaded:
                    await self._make_room()
                    await self._load(key)
                self._in_use[key] += self._waiting[key]
        finally:
            if self._coming.get(key) is asyncio.current_task():
                del self._coming[key], self._waiting[key]

    async def _load(self, key: Key) -> None:
        self._loading = key
        try:
            faults.point("loading")
            await self._engines.load(adapter_name(key), self._store.directory(*key))
            faults.point("loaded")
            self._loaded[key] = None
        finally:
            self._loading = None

    def _leave(self, key: Key) -> None:
        self._in_use[key] -= 1
        if not self._in_use[key]:
            del self._in_use[key]
            self._freed.set()

    async def _make_room(self) -> None:
        try:
            while len(self._loaded) >= self._capacity:
                if (victim := self._victim()) is not None:
                    await self._unload(victim)
                    continue
                others = [key for key in self._loaded if key not in self._draining]
                self._draining.update(others[:1])
                self._freed.clear()
                try:
                    await asyncio.wait_for(self._freed.wait(), self._patience)
                except TimeoutError:
                    pass
        finally:
            self._draining.clear()

    async def _unload(self, key: Key) -> None:
        if key in self._loaded:
            del self._loaded[key]
            await self._engines.unload(adapter_name(key))

    def _victim(self) -> Key | None:
        """Of the adapters in no request: rather one that no rollout has pinned, rather an old version, and the one that
        was used least recently. A pinned one is loaded again at its rollout's next call: a pin is on files, not slots.
        """
        pinned = self._leases.versions()
        idle = [key for key in self._loaded if not self._in_use[key]]
        return min(idle, key=lambda key: (key in pinned, self.newest.get(key[0]) == key[1]), default=None)
