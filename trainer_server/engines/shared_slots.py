"""The slots of a fleet: several servers load and unload adapters on the same engines, and none of them is in charge.

What is loaded, and which server holds what, is in the database (`ledger/fleet.py`). A server may send requests
for a version while it holds the version's slot. It keeps the slot until another one wants it cleared, so that a request
for a version that is held asks the database nothing. Loading twice, or unloading what is not there, does nothing. So
every server that holds a slot loads the adapter by itself, and nobody has to know how far another one came before it
was killed.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from trainer_server.engines.pool import Engines
from trainer_server.engines.slots import Key, NoFreeSlot, adapter_name, no_free_slot, version_in_use
from trainer_server.ledger.base import LedgerError
from trainer_server.ledger.fleet import SharedGateways
from trainer_server.process import faults
from trainer_server.process.tasks import PeriodicTask

_BEAT = 0.5
"""Seconds between two beats. A slot that another server wants is given back as late as this."""
_POLL_INTERVAL = 0.1
"""Seconds between two looks at a slot that is being cleared."""


class SharedSlots:
    """The `Slots` of one server of a fleet.

    Args:
        gateways: The servers of the fleet and their slots.
        engines: Where adapters are loaded.
        capacity: Adapters that are loaded at once.
        directory: The directory of a version.
        alone: Whether no other server uses these engines, as they are children of this one.
        wait: Seconds that a request waits for a slot. Time in which its adapter loads does not count.
        patience: Seconds after which the next slot is cleared too: a request for the first one may take long.
    """

    def __init__(
        self,
        *,
        gateways: SharedGateways,
        engines: Engines,
        capacity: int,
        directory: Callable[[str, int], Path],
        alone: bool = False,
        wait: float = 60.0,
        patience: float = 5.0,
    ) -> None:
        self._gateways, self._engines = gateways, engines
        self._capacity, self._directory = capacity, directory
        self._alone, self._wait, self._patience = alone, wait, patience
        self._slots: frozenset[Key] = frozenset()
        """All slots, by the last beat."""
        self._holds: set[Key] = set()
        self._wanted_back: set[Key] = set()
        self._deletions: set[Key] = set()
        """Versions whose files this server deletes."""
        self._in_use: Counter[Key] = Counter()
        self._waiting: Counter[Key] = Counter()
        self._loading: set[Key] = set()
        """Versions whose slots this server holds, and whose adapters are being loaded."""
        self._lives = 1
        """One more each time that the others took this server for dead."""
        self._claiming: defaultdict[Key, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._queue = asyncio.Lock()
        """Held while a slot is cleared for this server: one at a time, first come, first served."""
        self._needs_settling = False
        """Whether slots may be marked for this server that it does not need any more."""
        self._beating = asyncio.Lock()
        self._last_beat = float("-inf")
        """When the last beat that the database took was sent."""
        self._beats = PeriodicTask("the exchange with the other servers", self._next_beat)

    async def start(self) -> None:
        """Joins the fleet."""
        if self._alone:
            await self._gateways.clear()
        await self._beat()
        self._beats.start()

    async def stop(self) -> None:
        """Beats no more. What this server held is free once it leaves the fleet, or when the others miss its beats."""
        await self._beats.stop()

    def holds(self, key: Key) -> bool:
        return key in self._slots or key in self._holds

    def in_use(self, key: Key) -> bool:
        return self._in_use[key] > 0 or self._waiting[key] > 0

    @asynccontextmanager
    async def use(self, key: Key) -> AsyncIterator[str]:
        """Raises LedgerError too: a slot is needed, and the database is away."""
        if not self._at_hand(key):
            await self._take(key)
        self._in_use[key] += 1
        try:
            yield adapter_name(key)
        finally:
            self._in_use[key] -= 1
            if not self._in_use[key]:
                del self._in_use[key]

    async def forget(self, key: Key) -> None:
        if self.in_use(key):
            raise version_in_use(key)
        self._deletions.add(key)
        try:
            if (why := await self._gateways.close(key)) is not None:
                raise NoFreeSlot(f"{adapter_name(key)} cannot be deleted now: {why}")
            deadline = time.monotonic() + self._wait
            await self._beat()
            while await self._gateways.holders(key):
                if self.in_use(key) or time.monotonic() > deadline:
                    raise version_in_use(key)
                await asyncio.sleep(_POLL_INTERVAL)
                await self._beat()
            await self._engines.unload(adapter_name(key))
        except BaseException:
            self._deletions.discard(key)
            await self._settle()
            raise

    async def reopen(self, key: Key) -> None:
        self._deletions.discard(key)
        await self._gateways.delete_slot(key)

    async def drop(self, policy: str) -> None:
        await self._beat()
        for key in [key for key in self._slots if key[0] == policy]:
            await self.forget(key)
            await self.reopen(key)

    def mark_lost(self, key: Key) -> None:
        self._holds.discard(key)

    def _at_hand(self, key: Key) -> bool:
        """Whether requests for a version may be sent without asking the database."""
        # Not after the others may have taken this server for dead.
        alive = time.monotonic() - self._last_beat < self._gateways.term / 2
        return alive and key in self._holds and key not in self._wanted_back

    async def _take(self, key: Key) -> None:
        """Returns once this server holds a slot, and the engines the adapter."""
        deadline = time.monotonic() + self._wait
        self._waiting[key] += 1
        try:
            async with self._claiming[key]:
                ready = self._at_hand(key)
                while not ready:
                    if not await self._claim(key):
                        async with self._queue:
                            await self._clear_for(key, deadline)
                    ready = await self._load(key)
        finally:
            self._waiting[key] -= 1
            if not self._waiting[key]:
                del self._waiting[key], self._claiming[key]

    async def _load(self, key: Key) -> bool:
        """Has the engines load an adapter whose slot was granted just now. Returns whether this server holds it still;
        it may then be used, also if another server has begun to want it."""
        life = self._lives
        try:
            faults.point("loading")
            await self._engines.load(adapter_name(key), self._directory(*key))
            faults.point("loaded")
            if life != self._lives:
                return False
            self._holds.add(key)
            return True
        except BaseException:
            with suppress(LedgerError):  # then it is given back when another server wants it
                await asyncio.shield(self._gateways.drop(key))
            raise
        finally:
            self._loading.discard(key)

    async def _claim(self, key: Key, *, clear: bool = False) -> bool:
        """One try to hold a slot. Returns whether this server does."""
        if key in self._deletions:
            return False
        claim = await self._gateways.claim(key, self._capacity, clear=clear)
        if claim.expelled:
            await self._beat()
        for empty_slot in claim.empty_slots:
            if empty_slot not in self._deletions:
                await self._engines.unload(adapter_name(empty_slot))
                await self._gateways.delete_slot(empty_slot)
        if claim.granted:
            self._loading.add(key)
            self._wanted_back.discard(key)  # it was cleared and made again, or need not be cleared any more
        return claim.granted

    async def _clear_for(self, key: Key, deadline: float) -> None:
        """Holds a slot as soon as one is clear."""
        patience = 0.0
        try:
            while True:
                clear = time.monotonic() >= patience
                if clear:
                    patience = time.monotonic() + self._patience
                if await self._claim(key, clear=clear):
                    return
                await self._beat()  # gives back what this server does not need
                if await self._claim(key):
                    return
                if time.monotonic() > deadline and not self._engines.resting:
                    raise no_free_slot(self._capacity, self._wait)
                await asyncio.sleep(_POLL_INTERVAL)
        finally:
            await self._settle()

    async def _settle(self) -> None:
        """Slots need not be cleared any more. If the database is away, a later beat does it."""
        self._needs_settling = True
        with suppress(LedgerError):
            await asyncio.shield(self._gateways.settle(self._deletions))
            self._needs_settling = False

    async def _next_beat(self) -> None:
        await self._beat()
        if self._needs_settling and not self._queue.locked():
            await self._settle()
        await asyncio.sleep(_BEAT)

    async def _beat(self) -> None:
        """Reports that this server is alive, and gives back the slots that others want and no request here needs."""
        async with self._beating:
            now = time.monotonic()
            beat = await self._gateways.beat({*self._in_use, *self._loading})
            self._last_beat = now
            if beat.expelled:
                self._release_all()
            self._slots, self._wanted_back = beat.slots, set(beat.wanted_back)
            for key, number in beat.wanted_back.items():
                if not self._in_use[key] and key not in self._loading:
                    self._holds.discard(key)
                    self._engines.let_go(adapter_name(key))
                    await self._gateways.give_back(key, number)

    def _release_all(self) -> None:
        """The others took this server for dead, and may have unloaded what it held."""
        for key in self._holds:
            self._engines.let_go(adapter_name(key))
        self._holds.clear()
        self._lives += 1
