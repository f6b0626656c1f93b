"""Puts versions into service: engines load them, and then policies' names mean them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from trainer_server.engines.base import AdapterRefused
from trainer_server.engines.pool import Engines
from trainer_server.engines.slots import Key, NoFreeSlot, Slots, adapter_name
from trainer_server.ledger.base import LedgerError
from trainer_server.policies.names import PolicyNames
from trainer_server.policies.store import AdapterStore
from trainer_server.wire import EngineError, TrainingError

log = logging.getLogger("trainer_server")

_RETRY = 1.0
"""Seconds until the meanings of names are published again."""
_HEALTH_CHECK_DELAY = 1.5
"""Seconds to wait after an engine refused an adapter. Engines are checked every second, so a dead one is noticed."""
_MAX_REFUSALS = 3
"""Refusals by healthy engines after which a version is quarantined."""


class Deployment:
    """The versions of a server, and what serves them.

    Args:
        store: Versions on disk.
        names: The version that each policy's name means.
        slots: The adapters on the engines.
        engines: They serve versions.
    """

    def __init__(self, store: AdapterStore, names: PolicyNames, slots: Slots, engines: Engines) -> None:
        self.store, self.names, self.slots, self.engines = store, names, slots, engines

    async def clear(self, policy: str) -> None:
        """The policy is made anew: its name means nothing, and no engine holds a version of it."""
        self.names.forget(policy)
        await self._announce()
        await self.slots.drop(policy)

    async def deploy(self, key: Key, record: Callable[[], None]) -> float:
        """Puts a version into service. Waits for the engines for as long as they take.

        A version that healthy engines refuse several times is quarantined, and nowhere else: the version was made just
        now, and the same engines serve the version before it. Refusals while an engine is down do not count.

        Args:
            key: The version.
            record: Writes down, on a thread, that the version is in service. It is called before the name means it.

        Returns:
            Seconds until the version was served.

        Raises:
            TrainingError: The engines refuse the version, or its files are damaged or gone.
            OSError: `record` cannot write.
        """
        policy, version = key
        start, refusals = time.monotonic(), 0
        while self.names.newest.get(policy, -1) < version:
            if reason := self.store.quarantine_reasons(policy).get(version):
                raise TrainingError(reason)
            if policy in self.names.unserved_policies:  # of another base model: a server that has it will serve it
                break
            engines = self.engines.live
            try:
                async with self.slots.use(key):
                    await asyncio.to_thread(record)
                    self.names.serve(key)
                await self._announce()
            except (EngineError, LedgerError, NoFreeSlot) as error:
                log.warning("%s waits for the engine: %s", adapter_name(key), error)
                restarts = [engine.restarts for engine in engines]
                await asyncio.sleep(_HEALTH_CHECK_DELAY)
                healthy = all(engine.ready for engine in engines)
                stable = restarts == [engine.restarts for engine in engines]
                if isinstance(error, AdapterRefused) and healthy and stable:
                    refusals += 1
                why = await asyncio.to_thread(self.store.problem, policy, version)
                if why is None and refusals == _MAX_REFUSALS:
                    why = f"the engine does not take it ({error})"
                if why:
                    raise TrainingError(await asyncio.to_thread(self.store.quarantine, policy, version, why)) from None
        return time.monotonic() - start

    async def _announce(self) -> None:
        """Returns once all servers know what names mean: a client that learns of a version may ask any of them."""
        while True:
            try:
                await self.names.announce()
                return
            except LedgerError as error:
                log.error("the other servers are told again what policies' names mean: %s", error)
                await asyncio.sleep(_RETRY)
