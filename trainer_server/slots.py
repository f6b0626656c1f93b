"""Which adapters the engines hold: newest versions always, older ones on demand, the least recently used goes first."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from trainer_server import faults
from trainer_server.adapters import AdapterStore
from trainer_server.engine import Engine
from trainer_server.leases import Leases
from trainer_server.wire import ARTError

Key = tuple[str, int]
"""(policy, version)"""


class NoFreeSlot(ARTError):
    """Every adapter that the engines hold is in use."""


def adapter_name(key: Key) -> str:
    """What vLLM calls a version. Never reused: its prefix cache is keyed by name and path."""
    return f"{key[0]}@{key[1]}"


class Slots:
    """Keeps each wanted adapter loaded on every engine, at most `capacity` at once."""

    def __init__(self, store: AdapterStore, engines: Sequence[Engine], leases: Leases, capacity: int) -> None:
        self._store = store
        self._engines = engines
        self._leases = leases
        self._capacity = capacity
        self._loaded: OrderedDict[Key, None] = OrderedDict()  # least recently used first
        self._in_use: Counter[Key] = Counter()
        self._lock = asyncio.Lock()
        self.newest: dict[str, int] = {}
        """By policy: the version that its name means. Set once the engines hold that version."""
        self.unserved: dict[str, str] = {}
        """Policies that this server cannot serve, and why."""

    def holds(self, key: Key) -> bool:
        return key in self._loaded and all(adapter_name(key) in engine.loaded for engine in self._engines)

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
        """Whether a request or a rollout needs a version."""
        return self._in_use[key] > 0 or key in self._leases.versions()

    @asynccontextmanager
    async def use(self, key: Key) -> AsyncIterator[str]:
        """Holds an adapter for the length of a request; gives its name in vLLM. Raises NoFreeSlot, EngineError."""
        self._in_use[key] += 1
        try:
            if not self.holds(key):
                async with self._lock:
                    await self._load(key)
            self._loaded.move_to_end(key)
            yield adapter_name(key)
        finally:
            self._in_use[key] -= 1

    async def publish(self, key: Key) -> None:
        """Loads a new version everywhere, then makes the policy's name mean it."""
        async with self._lock:
            await self._load(key)
        self.newest[key[0]] = max(key[1], self.newest.get(key[0], 0))

    async def forget(self, key: Key) -> None:
        """Unloads a version whose files are about to go. Raises NoFreeSlot when it is in use."""
        async with self._lock:
            if self.in_use(key):
                raise NoFreeSlot(f"{adapter_name(key)} is in use by a rollout; delete it when that has ended")
            await self._unload(key)

    async def _load(self, key: Key) -> None:
        if self.holds(key):
            return
        while len(self._loaded.keys() - {key}) >= self._capacity:
            await self._unload(self._victim())
        path = self._store.directory(*key)
        faults.point("loading")
        await asyncio.gather(*(engine.load_adapter(adapter_name(key), path) for engine in self._engines))
        faults.point("loaded")
        self._loaded[key] = None

    async def _unload(self, key: Key) -> None:
        if key in self._loaded:
            del self._loaded[key]
            await asyncio.gather(*(engine.unload_adapter(adapter_name(key)) for engine in self._engines))

    def _victim(self) -> Key:
        """The least recently used adapter that is neither in a request nor leased; rather not a policy's newest."""
        idle = [key for key in self._loaded if not self.in_use(key)]
        for key in idle:
            if self.newest.get(key[0]) != key[1]:
                return key
        if idle:
            return idle[0]
        raise NoFreeSlot(
            f"all {self._capacity} adapter slots are in use; try again, or serve with more --adapter-slots"
        )
