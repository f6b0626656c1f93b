"""All engines of a server: routes each request to one of them, and loads adapters on all of them."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Collection, Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, overload

from trainer_server.engines.base import AdapterRefused, Engine, readable
from trainer_server.wire import EngineError

log = logging.getLogger("trainer_server")

_MAX_KEYS = 100_000
"""Affinity keys whose engine is remembered. Beyond that, the least recently used key is forgotten."""
_POLL_INTERVAL = 0.05
"""Seconds between checks whether resting engines are ready again."""
_BACK = 180.0
"""Seconds that engines have to be ready after a rest, before a waiting adapter load fails."""
_SLACK = 4
"""A request that is not sticky goes to another engine when its own engine has this many more requests."""
_GROUP_SLACK = 8
"""A new rollout leaves the engine of its prompt when that has this many more requests than the least busy one."""


class Engines(Sequence[Engine]):
    """The engines of a server. All of them hold the same adapters.

    A rollout keeps its engine, because the prefix cache of that engine knows its prompts. A new rollout goes to the
    engine with the fewest requests, or to that of the last rollout with the same long prompt. When an engine goes away,
    its rollouts move to other engines. When it comes back, it gets new rollouts.

    Args:
        engines: The engines. Without any, no request to a model is answered.
    """

    def __init__(self, engines: Sequence[Engine]) -> None:
        self._engines = tuple(engines)
        self._engine_by_key: OrderedDict[str, Engine] = OrderedDict()
        self._route_numbers = itertools.count(1)
        self._last_routed = dict.fromkeys(self._engines, 0)
        self._requests: Counter[Engine] = Counter()
        self._idle, self._idle_since = 0.0, dict.fromkeys(self._engines, time.monotonic())
        """Seconds without a request, of all engines together, and since when those that are idle now have none."""

    @overload
    def __getitem__(self, at: int) -> Engine: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Engine]: ...
    def __getitem__(self, at: int | slice) -> Engine | Sequence[Engine]:
        return self._engines[at]

    def __len__(self) -> int:
        return len(self._engines)

    @property
    def live(self) -> list[Engine]:
        """The engines that are ready."""
        return [engine for engine in self._engines if engine.ready]

    @property
    def resting(self) -> bool:
        """Whether any engine rests or is about to rest."""
        return any(engine.resting for engine in self._engines)

    @property
    def idle_seconds(self) -> float:
        """For how long an engine has had no request since this object was made; of several engines, the mean."""
        now = time.monotonic()
        idle = self._idle + sum(now - since for since in self._idle_since.values())
        return idle / max(1, len(self._engines))

    async def wait_ready(self, timeout: float) -> None:
        """Waits until any engine is ready.

        Args:
            timeout: Seconds to wait at most.

        Raises:
            EngineError: No engine is ready after `timeout` seconds, or none will be; see Engine.wait_ready. The message
                has the engines' own errors, if any.
        """
        if self.live:
            return
        if not self._engines:
            raise EngineError("this server has no engine: it answers no request to a model")
        waits = [asyncio.create_task(engine.wait_ready(timeout)) for engine in self._engines]
        try:
            pending = set(waits)
            while pending and not self.live:  # one that gives up early says nothing of the others
                _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            if not self.live:
                failures = [engine.failure for engine in self._engines if engine.failure]
                raise EngineError("; ".join(failures) or f"no engine is ready after {timeout:.0f} s")
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    @contextmanager
    def route(self, affinity_key: str, *, sticky: bool, prompt: str | None = None) -> Iterator[Engine]:
        """Chooses an engine for the duration of one request.

        Args:
            affinity_key: The rollout, or a digest of the conversation's beginning: requests with the same key share
                prompts, so they go to the engine whose prefix cache knows them.
            sticky: Whether the request stays with that engine however busy it is; else it may go to another engine.
            prompt: Digest of a long prompt that other keys share: a new key goes to the engine of the last one with
                this prompt, unless that engine is much busier than others.

        Raises:
            EngineError: No engine is ready.
        """
        engine = self._choose(affinity_key, sticky, prompt)
        self._requests[engine] += 1
        if (since := self._idle_since.pop(engine, None)) is not None:
            self._idle += time.monotonic() - since
        try:
            with engine.occupied():
                yield engine
        finally:
            self._requests[engine] -= 1
            if not self._requests[engine]:
                self._idle_since[engine] = time.monotonic()

    def has_choice(self, affinity_key: str) -> bool:
        """Whether a key has no engine yet, and there are several."""
        return len(self._engines) > 1 and affinity_key not in self._engine_by_key

    def forget(self, affinity_keys: Collection[str]) -> None:
        """Forgets which engine knows the prompts of rollouts that have ended."""
        for key in affinity_keys:
            self._engine_by_key.pop(key, None)

    def _choose(self, affinity_key: str, sticky: bool, prompt: str | None) -> Engine:
        live = self.live
        if not live:
            raise EngineError("no engine is ready")
        if len(self._engines) == 1:  # there is nothing to remember
            return live[0]
        least = min(live, key=lambda engine: (engine.busy, self._last_routed[engine]))
        own = self._engine_by_key.get(affinity_key)
        if own is None or not own.ready:
            own = least
            if prompt is not None:
                last = self._engine_by_key.get(prompt)
                if last is not None and last.ready and last.busy < least.busy + _GROUP_SLACK:
                    own = last
                self._remember(prompt, own)  # the rest of a group follows to the engine that it spills to
            self._last_routed[own] = next(self._route_numbers)
        self._remember(affinity_key, own)
        return own if sticky or own.busy < least.busy + _SLACK else least

    def _remember(self, key: str, engine: Engine) -> None:
        self._engine_by_key[key] = engine
        self._engine_by_key.move_to_end(key)
        if len(self._engine_by_key) > _MAX_KEYS:
            self._engine_by_key.popitem(last=False)

    async def load(self, name: str, path: Path) -> None:
        """Loads an adapter on all engines that are ready. Engines that are away load it before they are ready again.

        If engines rest, this waits until they are ready. An engine that refuses an adapter which another engine loads
        is not used until it loads it too.

        Args:
            name: The adapter's name in requests.
            path: The adapter's directory.

        Raises:
            EngineError: No engine loaded the adapter, or its files are gone.
        """
        while self.resting:
            await asyncio.sleep(_POLL_INTERVAL)
            if not self.resting:
                await self.wait_ready(_BACK)
        if not readable(path):
            raise EngineError(f"the files of {name} are gone: {path} has no adapter_config.json")
        for engine in self._engines:
            engine.wanted[name] = path
        live = self.live
        try:
            failures = await asyncio.gather(*(_failure(engine.load(name, path)) for engine in live))
            if all(failures):  # also when no engine is live
                raise next(iter(failures), None) or EngineError("no engine is ready")
        except BaseException:
            self.let_go(name)
            raise
        for engine, failure in zip(live, failures, strict=True):
            if isinstance(failure, AdapterRefused):
                log.error("not in use: %s", failure)
                engine.suspect(str(failure))

    def let_go(self, name: str) -> None:
        """Engines need not hold an adapter any more, as far as this server is concerned. Another one may unload it."""
        for engine in self._engines:
            engine.wanted.pop(name, None)

    async def unload(self, name: str) -> None:
        """Unloads an adapter from all engines. Failures are logged."""
        self.let_go(name)
        for failure in await asyncio.gather(*(_failure(engine.unload(name)) for engine in self.live)):
            if failure:
                log.error("%s", failure)

    @asynccontextmanager
    async def rest(self) -> AsyncIterator[None]:
        """Lets all engines rest while the context is open; see Engine.rest."""
        async with AsyncExitStack() as stack:
            for engine in self._engines:
                await stack.enter_async_context(engine.rest())
            yield


async def _failure(work: Coroutine[Any, Any, None]) -> EngineError | None:
    """How an engine failed to load or unload. Only `AdapterRefused` keeps its kind: an error of a kind
    that a chat request can have would be taken for one of the request that waits for the adapter."""
    try:
        await work
    except AdapterRefused as error:
        return error
    except EngineError as error:
        failure = EngineError(str(error))
        failure.__cause__ = error
        return failure
    return None
