"""A vLLM as an Engine: started and supervised here, or running elsewhere (`--engine-url`)."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from trainer_server.engines import harmony
from trainer_server.engines.adapter_files import is_copy
from trainer_server.engines.base import (
    UNKNOWN,
    AdapterRefused,
    EngineLost,
    EngineSettings,
    Reply,
    missing_text,
    readable,
)
from trainer_server.engines.model_files import ModelFiles
from trainer_server.engines.served_model import ServedModel
from trainer_server.engines.vllm.dialect import AdapterDelayed, Health, VLLMClient
from trainer_server.engines.vllm.parsers import Parsers, no_tools_reason, parsers_of
from trainer_server.engines.vllm.process import (
    PATIENCE,
    HealthFailures,
    StartPhases,
    VLLMProcess,
    crash_phrase,
    start_failure,
)
from trainer_server.engines.vllm.registry import check_whole_adapters
from trainer_server.process.child import Child
from trainer_server.wire import EngineError

log = logging.getLogger("trainer_server")

START_TIMEOUT = 900.0
"""Seconds within which vLLM must answer after its start; a large model on a cold disk takes minutes."""
_HEALTH_INTERVAL = 1.0
"""Seconds between two health checks of an engine that is ready."""
_BACKOFF = (0.0, 1.0, 5.0, 15.0, 60.0)
"""Seconds before an engine is started again, by the number of tries and deaths before."""
_STEADY = 300.0
"""Seconds that an engine must be ready until earlier tries and deaths no longer count."""
_FUTILE = 3
"""Deaths without one answered request in between, after which requests do not wait for the next start any more."""
_REMOTE_BACKOFF = 2.0
"""Seconds between two checks of an engine elsewhere that is away."""
_DRAIN = 300.0
"""Seconds that an engine has to finish its answers before it rests. Without a limit, a client that stopped reading
could block the trainer for ever."""


def _client(url: str, key: str | None, settings: EngineSettings) -> VLLMClient:
    base = settings.base
    speaks_harmony = ModelFiles(Path(base.path)).model_type == harmony.MODEL_TYPE
    return VLLMClient(url, key, base=base.name, cpu=settings.cpu, revision=base.revision, harmony=speaks_harmony)


class VLLMEngine:
    """A vLLM server and the adapters that it must hold: an `Engine`, whose docstrings say what its methods do.

    Args:
        client: Client of the server.
        base: The base model that it serves.
        child: The server's process, if it is started here; None: it runs elsewhere.
        shares: Whether the trainer uses the same GPUs, by turns; see `rest`.
        parsers: The parsers that the child is started with; None: it runs elsewhere.
        key: The key that requests to the server carry; None: it has none.
    """

    def __init__(
        self,
        client: VLLMClient,
        base: ServedModel,
        *,
        child: Child | None = None,
        shares: bool = False,
        parsers: Parsers | None = None,
        key: str | None = None,
    ) -> None:
        self.client, self._base, self._child, self.key = client, base, child, key
        self._shares, self._parsers = shares, parsers
        self.url = client.url
        self.wanted: dict[str, Path] = {}
        self.resting = False
        self.busy = 0
        self.restarts = 0
        self.failure: str | None = None
        self.max_model_len: int | None = None
        self._lock = asyncio.Lock()  # held while the engine is started, restarted, or rests
        self._max_num_seqs: int | None = None
        """Requests that vLLM computes at once; None: it does not say."""
        self._missing: dict[str, list[str]] | str | None = None
        """By feature that plugins left out in this vLLM: what is missing for it. UNKNOWN: it does not say. None: it was
        not asked yet."""
        self._parses_tools: bool | None = None if parsers is None else parsers.tools.name is not None
        self._tries = 0
        """Starts and tries to make it ready since it was steady; the wait before the next one grows with them."""
        self._ready_since = 0.0
        self._deaths = 0
        """Deaths of vLLM, at its start or under a request, since it answered one last."""
        self._idle = False
        """Whether it has been ready since its start, and has lost no request: its death then says nothing of itself."""
        self._adapters: set[str] = set()
        """Adapters that it holds."""
        self._ready = asyncio.Event()
        self._futile = asyncio.Event()
        """Set while it is started again though its deaths are many."""
        self._health_failures = HealthFailures()
        self._supervisor: asyncio.Task[None] | None = None

    @classmethod
    def at(cls, url: str, settings: EngineSettings) -> VLLMEngine:
        """An engine for a vLLM that runs elsewhere."""
        client = _client(url, settings.api_key, settings)
        return cls(client, settings.base, shares=settings.share_gpu, key=settings.api_key)

    @classmethod
    def with_child(cls, settings: EngineSettings, *, name: str = "engine", gpus: str | None = None) -> VLLMEngine:
        """An engine for a vLLM that this server starts on a Unix socket.

        Args:
            settings: Options of `serve`.
            name: Name of the log file.
            gpus: Value of CUDA_VISIBLE_DEVICES; None: not set, so that all GPUs are used.
        """
        parsers = parsers_of(
            settings.base.path,
            settings.home.cache,
            tools=settings.tool_call_parser,
            reasoning=settings.reasoning_parser,
            args=settings.args,
        )
        key = secrets.token_urlsafe(24)
        child = VLLMProcess(settings, key, parsers, name=name, gpus=gpus)
        client = _client(f"unix:{child.socket}", key, settings)
        return cls(client, settings.base, child=child, shares=settings.share_gpu, parsers=parsers, key=key)

    @property
    def ready(self) -> bool:
        return self._ready.is_set()

    def describe(self) -> dict[str, Any]:
        if self._parsers:
            tools, reasoning = self._parsers.tools.name, self._parsers.reasoning.name
        else:
            tools, reasoning = None if self._parses_tools is False else UNKNOWN, UNKNOWN
        return {
            "url": self.url,
            "ready": self.ready,
            "resting": self.resting,
            "error": self.failure,
            "requests": self.busy,
            "restarts": self.restarts,
            "adapters": sorted(self._adapters & self.wanted.keys()),
            "max_model_len": self.max_model_len,
            "max_num_seqs": self._max_num_seqs,
            "pid": self._child.pid if self._child else None,
            "missing": self._missing,
            "tool_parser": tools,
            "reasoning_parser": reasoning,
        }

    async def request_seconds(self) -> dict[str, float] | None:
        return await self.client.request_seconds()

    @property
    def no_tools(self) -> str | None:
        return no_tools_reason(self.url, self._parsers) if self._parses_tools is False else None

    @property
    def constrains_calls(self) -> bool:
        return self._parsers is not None and self._parsers.constrains_calls

    async def start(self, progress: Callable[[str], None] = lambda _: None) -> None:
        """Starts vLLM and waits until it is ready or has failed.

        After a failure, `failure` says why, with the end of vLLM's log if it died. The supervisor then starts it again,
        or waits until it answers, as for an engine that goes away later.
        """
        start_time = time.monotonic()
        for reason in self._parsers.lines() if self._parsers else ():
            progress(reason)
        try:
            async with self._lock:
                await self._start_child()
                phases = await self._make_ready(progress)
            progress(f"vLLM at {self.url} is ready ({time.monotonic() - start_time:.0f} s{phases})")
        except Exception as error:  # of any kind: the supervisor tries again
            self._record_failure(error)
        self._supervisor = asyncio.create_task(self._supervise(), name="engine-supervisor")

    async def stop(self) -> None:
        if self._supervisor:
            self._supervisor.cancel()
            await asyncio.gather(self._supervisor, return_exceptions=True)
        self._ready.clear()
        await self.client.close()
        if self._child:
            await self._child.close()

    async def wait_ready(self, timeout: float) -> None:
        if self.ready:
            return
        waits = [asyncio.create_task(event.wait()) for event in (self._ready, self._futile)]
        try:
            await asyncio.wait(waits, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
        if not self.ready:
            raise EngineError(self.failure or f"vLLM at {self.url} is not ready after {timeout:.0f} s")

    @contextmanager
    def occupied(self) -> Iterator[None]:
        self.busy += 1
        try:
            yield
        finally:
            self.busy -= 1

    @asynccontextmanager
    async def rest(self) -> AsyncIterator[None]:
        """Frees the engine's GPU memory while the context is open: vLLM sleeps; see VLLMClient.sleep.

        An engine that is being started is waited for. New requests wait; running requests are finished first. If vLLM
        fails to sleep, it is ended when it was started here, and otherwise stays awake, which is logged. After the
        context, the supervisor wakes it up.
        """
        async with self._lock:
            self.resting = True
            self._ready.clear()
            try:
                await self._put_to_sleep()
                yield
            finally:
                self.resting = False

    async def load(self, name: str, path: Path) -> None:
        try:
            with self.occupied():
                await self.client.load(name, path)
        except AdapterDelayed as error:
            self.suspect(str(error))
            raise
        except EngineLost as error:
            self.suspect()
            raise EngineError(f"vLLM went away while loading {name}: {error}") from error
        except AdapterRefused as error:
            raise AdapterRefused(f"{error}{self._remedy(path)}") from None
        self._adapters.add(name)

    async def unload(self, name: str) -> None:
        self._adapters.discard(name)
        try:
            with self.occupied():
                await self.client.unload(name)
        except EngineLost:  # it does not hold the adapter any more
            self.suspect()

    def chat(self, request: Mapping[str, Any]) -> AbstractAsyncContextManager[Reply]:
        return self._reply(self.client.chat(request))

    def complete(self, request: Mapping[str, Any]) -> AbstractAsyncContextManager[Reply]:
        return self._reply(self.client.complete(request))

    @asynccontextmanager
    async def _reply(self, request: AbstractAsyncContextManager[Reply]) -> AsyncIterator[Reply]:
        with self._suspected_when_lost():
            async with request as reply:
                yield reply
        self.note_request(lost=False)

    def note_request(self, *, lost: bool) -> None:
        if lost:
            self._idle = False
            self.suspect()
        else:
            self._deaths = 0

    async def render(self, chat: Mapping[str, Any], *, generation: bool) -> list[int]:
        with self._suspected_when_lost():
            return await self.client.render(chat, generation=generation)

    async def tokenize(self, text: str) -> list[int]:
        with self._suspected_when_lost():
            return await self.client.tokenize(text)

    async def detokenize(self, tokens: Sequence[int]) -> str:
        with self._suspected_when_lost():
            return await self.client.detokenize(tokens)

    def suspect(self, failure: str | None = None) -> None:
        if self._supervisor and not self._supervisor.done():
            self._ready.clear()
            self.failure = failure or self.failure

    async def check(self) -> None:
        self.max_model_len = await self.client.check(sleeps=self._shares)
        report = await self.client.plugin_report()
        self._max_num_seqs = None if report is None else report.max_num_seqs
        self._note_missing_parts(None if report is None else report.missing)

    def _note_missing_parts(self, missing: dict[str, list[str]] | None) -> None:
        """Keeps what plugins left out in this vLLM. The same is logged once.

        Raises:
            EngineError: It applies adapters without seeing whether it applies all of them.
        """
        before, self._missing = self._missing, UNKNOWN if missing is None else missing
        if self._missing != before:
            if missing is None:
                log.warning(
                    "the vLLM at %s runs without this project's plugins: it does not say whether it applies all of an "
                    "adapter, and its log-probabilities are rounded more. `art-langgraph engine command` prints the "
                    "line that starts it with them",
                    self.url,
                )
            if missing:
                log.warning("the vLLM at %s goes without %s", self.url, missing_text(missing))
        check_whole_adapters(self.url, missing or {})

    @contextmanager
    def _suspected_when_lost(self) -> Iterator[None]:
        try:
            yield
        except EngineLost:
            self.note_request(lost=True)
            raise

    def _remedy(self, path: Path) -> str:
        """What to add to the message about a refused adapter."""
        if self._child:
            return f" (its files are in {path})"
        return (
            f". It reads {path} itself: an engine on another machine needs a --max-lora-rank that is large enough, and "
            "either the server's home directory at the same path (a shared file system) or the line of `art-langgraph "
            "engine command --adapters-from ADDRESS-OF-THIS-SERVER`"
        )

    async def _start_child(self) -> None:
        self._idle = False
        if self._child:
            await self._child.start()

    async def _serves(self) -> bool:
        """Whether a ready vLLM stays in service: it is alive and holds the loaded adapters, or is only slow to say so.

        If somebody restarted vLLM, it holds no adapters.
        """
        if self._child and not self._child.running:
            return False
        health = await self.client.health()
        if health == Health.alive:
            before = set(self._adapters)
            try:
                present = await self.client.adapters()
                if not before & self._adapters & self.wanted.keys() <= present.keys():  # others may have been let go
                    return False
            except EngineError:
                health = Health.silent
        if health == Health.alive:
            self._health_failures.clear()
        elif health == Health.silent:
            self._health_failures.record()
        return health == Health.alive or (health == Health.silent and not self._health_failures.too_many)

    async def _make_ready(self, progress: Callable[[str], None] = lambda _: None) -> str:
        """Makes the engine ready: waits for its process to answer, checks it, and loads the wanted adapters.

        Args:
            progress: Is told of the phases of a start on a GPU.

        Returns:
            The seconds of those phases, see `StartPhases.summary`.

        Raises:
            EngineError: vLLM does not answer, cannot serve the base model, or does not load an adapter.
        """
        deadline = time.monotonic() + START_TIMEOUT
        phases = StartPhases(self._child)
        while not await self.client.healthy():
            if not self._child:
                raise EngineError(f"the engine at {self.url} does not answer")
            if phase := phases.advance():
                progress(f"vLLM starts: {phase}")
            if not self._child.running:
                raise EngineError(start_failure(self._child, self._base))
            if time.monotonic() > deadline:
                raise EngineError(f"vLLM at {self.url} does not answer; look into {self._child.log}")
            await asyncio.sleep(0.1)
        self._health_failures.clear()
        await self.check()
        if self._shares:
            await self._wake_up()
        if self._parsers is None:
            self._parses_tools = await self.client.parses_tools()
        present = await self.client.adapters()
        if self._child:  # adapters that were unloaded while vLLM was away
            for name in present.keys() - self.wanted.keys():
                await self.unload(name)
        candidates = [(name, path) for name, path in self.wanted.items() if name in present]
        self._adapters = {name for name, path in candidates if await asyncio.to_thread(is_copy, present[name], path)}
        while missing := [name for name in self.wanted if name not in self._adapters]:
            name, path = missing[0], self.wanted[missing[0]]
            try:
                await self.load(name, path)
            except AdapterRefused as error:
                if not self._child and readable(path):
                    raise  # without the adapter the engine would answer requests for it with other weights
                log.error("%s", error)
                self.wanted.pop(name, None)
        self.failure = None
        self._ready_since = time.monotonic()
        self._idle = True
        self._futile.clear()
        self._ready.set()
        return phases.summary()

    def _count_death(self, child: Child) -> str:
        """Counts the death of vLLM. Returns what it died of, as the end of a phrase; empty: the log does not say."""
        why = crash_phrase(child)
        if not self._idle:
            self._deaths += 1
            self._idle = True  # the same death is counted once
        if self._deaths >= _FUTILE:
            self.failure = (
                f"vLLM died {self._deaths} times, and has answered no request in between{why}. It is started again, "
                f"and requests are refused until it is ready. Its log is {child.log}"
            )
            log.error("not in use: %s", self.failure)
            self._futile.set()
        return why

    async def _put_to_sleep(self) -> None:
        try:
            async with asyncio.timeout(_DRAIN):
                while self.busy:
                    await asyncio.sleep(0.02)
        except TimeoutError:
            log.warning("%s: %d answers are cut off, the trainer has waited for %.0f s", self.url, self.busy, _DRAIN)
        try:
            await self.client.sleep()
        except EngineError as error:
            if self._child:
                log.warning("vLLM does not sleep, and is ended for this step: %s", error)
                await self._child.stop()
                self._tries = 0  # it did not die
            else:
                log.error("the engine at %s does not sleep, and keeps its GPU memory: %s", self.url, error)

    async def _wake_up(self) -> None:
        """Wakes vLLM up; does nothing if it is awake. Ends a process that does not wake up."""
        try:
            await self.client.wake_up()
        except EngineLost as error:
            if self._child:
                await self._child.stop()
            raise EngineError(f"vLLM at {self.url} did not wake up: {error}") from error

    async def _supervise(self) -> None:
        while True:
            await asyncio.sleep(_HEALTH_INTERVAL if self.ready else 0.1)
            try:
                if self.ready and await self._serves():
                    if time.monotonic() - self._ready_since >= _STEADY:
                        self._tries = 0
                    continue
                self._ready.clear()
                async with self._lock:  # after a rest, this wakes vLLM up
                    await self._recover()
            except Exception as error:  # of any kind: nobody else would bring the engine back
                self._ready.clear()
                self._record_failure(error)
                if self._child is None:
                    await asyncio.sleep(_REMOTE_BACKOFF)
                elif self._child.running:  # else the wait is before its start
                    await asyncio.sleep(self._next_wait())

    async def _lives(self, child: Child) -> bool:
        """Whether vLLM's process runs and answers. If it runs and does not answer, this waits, but not for ever."""
        while child.running:
            if await self.client.healthy():
                return True
            self._health_failures.record()
            if self._health_failures.too_many:
                log.warning("vLLM at %s runs, and has not answered for %.0f s", self.url, PATIENCE)
                return False
            await asyncio.sleep(0.1)
        return False

    async def _recover(self) -> None:
        """Tries once to make the engine ready again. Raises what keeps it from being so."""
        if self._child and not await self._lives(self._child):
            wait = self._next_wait()
            log.warning(
                "vLLM died (restart %d)%s, and is started again in %g s; its log is %s",
                self.restarts + 1,
                self._count_death(self._child),
                wait,
                self._child.log,
            )
            await self._child.stop()
            await asyncio.sleep(wait)
            self.restarts += 1
            self._health_failures.clear()
            await self._start_child()
        await self._make_ready()
        log.info("vLLM at %s is back with %d adapters", self.url, len(self._adapters))

    def _next_wait(self) -> float:
        """Counts one more try. Returns the seconds to wait before it."""
        wait = _BACKOFF[min(self._tries, len(_BACKOFF) - 1)]
        self._tries += 1
        return wait

    def _record_failure(self, error: Exception) -> None:
        """Keeps and logs why the engine is not ready; the same reason is logged once."""
        expected = isinstance(error, EngineError | OSError)
        failure = (str(error) if expected else "") or f"{type(error).__name__}: {error}"
        if failure != self.failure:
            log.error("not in use: %s", failure, exc_info=None if expected else error)
        self.failure = failure
