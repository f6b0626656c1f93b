"""One life of a vLLM: launched and supervised here, or running elsewhere (`--engine-url`). Its HTTP is dialect.py's."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from trainer_server.engines.base import AdapterRefused, EngineLost, EngineSettings, Reply, readable
from trainer_server.engines.vllm.command import command, environment, free_port
from trainer_server.engines.vllm.dialect import VLLMClient
from trainer_server.process.child import Child
from trainer_server.wire import ConfigError, EngineError

log = logging.getLogger("trainer_server")

START_TIMEOUT = 900.0
"""Seconds until vLLM must answer after its start; a large model on a cold disk takes minutes."""
_HEALTH_INTERVAL = 1.0
_BACKOFF = (0.0, 1.0, 5.0, 15.0, 60.0)
"""Seconds before an engine that died again and again is started again."""
_REMOTE_BACKOFF = 2.0
"""Seconds between two looks at an engine elsewhere: asking costs it nothing."""
_DRAIN = 300.0
"""Seconds that an engine has for the answers that it is giving before it rests: a client that stopped reading must not
keep the trainer from its work for ever."""


def vllm_engines(settings: EngineSettings) -> list[VLLMEngine]:
    """One engine for each of `settings.urls`, or else one that is started here for each of `settings.gpus`.

    Raises:
        ConfigError: Settings that exclude each other, or a URL that is none.
    """
    if settings.urls:
        if settings.args or settings.gpus:
            flag = "--engine-args" if settings.args else "--engine-gpus"
            raise ConfigError(f"{flag} is for engines that are started here: give it where {settings.urls[0]} is")
        urls = [_root(url) for url in settings.urls]
        if len(set(urls)) < len(urls):
            raise ConfigError(f"--engine-url names an engine twice: {', '.join(urls)}")
        return [VLLMEngine.at(url, settings) for url in urls]
    if settings.share_gpu and settings.cpu:
        raise ConfigError("--share-gpu needs an NVIDIA GPU: on CPUs engine and trainer share main memory anyway")
    many = len(settings.gpus) > 1
    return [
        VLLMEngine.launched(settings, name=f"engine-{at}" if many else "engine", gpus=gpus)
        for at, gpus in enumerate(settings.gpus or (None,))
    ]


def _root(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"--engine-url {url}: it must look like http://host:8000")
    return url.rstrip("/").removesuffix("/v1")


class VLLMEngine:
    """A vLLM server and the adapters that it should hold; see the protocol Engine.

    Args:
        client: Speaks with it.
        child: Its process, if it is started here; None: others run it.
        shares: Whether its GPUs are the trainer's too, by turns; see `rest`.
    """

    def __init__(self, client: VLLMClient, *, child: Child | None = None, shares: bool = False) -> None:
        self.client = client
        self.url = client.url
        self.resting = False
        self._shares = shares
        self._changing = asyncio.Lock()  # held while it is started, brought back, or resting
        self.wanted: dict[str, Path] = {}
        self.busy = 0
        self.restarts = 0
        self.max_model_len: int | None = None
        self._child = child
        self._held: set[str] = set()
        self._ready = asyncio.Event()
        self._failure: str | None = None
        self._watch: asyncio.Task[None] | None = None

    @classmethod
    def at(cls, url: str, settings: EngineSettings) -> VLLMEngine:
        """A vLLM that others run."""
        client = VLLMClient(url, settings.api_key, base=settings.base.name, cpu=settings.cpu)
        return cls(client, shares=settings.share_gpu)

    @classmethod
    def launched(cls, settings: EngineSettings, *, name: str = "engine", gpus: str | None = None) -> VLLMEngine:
        """A vLLM that this server starts on a private port.

        Args:
            settings: What the server was asked for.
            name: Names its log.
            gpus: What CUDA_VISIBLE_DEVICES says; None: all.
        """
        base, sleeps = settings.base, settings.share_gpu
        port, key = free_port(), secrets.token_urlsafe(24)
        line = command(
            base,
            settings.home,
            port,
            max_loras=settings.adapter_slots,
            max_rank=settings.max_rank,
            cpu=settings.cpu,
            extra=settings.args,
            sleeps=sleeps,
        )
        variables = environment(base, key, kv_cache_gib=settings.kv_cache_gib, gpus=gpus, sleeps=sleeps)
        child = Child(name, line, settings.home.logs, variables)
        client = VLLMClient(f"http://127.0.0.1:{port}", key, base=base.name, cpu=settings.cpu)
        return cls(client, child=child, shares=sleeps)

    @property
    def ready(self) -> bool:
        return self._ready.is_set()

    @property
    def failure(self) -> str | None:
        """Why no request reaches the engine, where that is known."""
        return self._failure

    def describe(self) -> dict[str, Any]:
        """Its state, as `GET /api/engines` shows it."""
        return {
            "url": self.url,
            "ready": self.ready,
            "resting": self.resting,
            "error": self._failure,
            "requests": self.busy,
            "restarts": self.restarts,
            "adapters": sorted(self._held),
            "max_model_len": self.max_model_len,
        }

    async def start(self, progress: Callable[[str], None] = lambda _: None) -> None:
        """Starts vLLM and waits until it answers. Where it does not, `failure` says what is amiss, with the end of its
        log if it died; it is started again, or taken in when it answers, like one that goes away later."""
        started = time.monotonic()
        try:
            async with self._changing:
                if self._child:
                    await self._child.start()
                await self._take_in()
            progress(f"vLLM at {self.url} is ready ({time.monotonic() - started:.0f} s)")
        except (EngineError, OSError) as error:
            self._failure = str(error)
            log.error("not in use: %s", error)
        self._watch = asyncio.create_task(self._supervise(), name="engine-supervisor")

    async def stop(self) -> None:
        if self._watch:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        self._ready.clear()
        await self.client.close()
        if self._child:
            await self._child.stop()

    async def wait_ready(self, timeout: float) -> None:
        """Waits for a starting or restarting engine, at most `timeout` seconds. Raises EngineError."""
        try:
            await asyncio.wait_for(self._ready.wait(), timeout)
        except TimeoutError:
            raise EngineError(self._failure or f"vLLM at {self.url} is not ready after {timeout:.0f} s") from None

    @contextmanager
    def occupied(self) -> Iterator[None]:
        """It has something to do for as long as the context lasts, and does not rest before that is over."""
        self.busy += 1
        try:
            yield
        finally:
            self.busy -= 1

    @asynccontextmanager
    async def rest(self) -> AsyncIterator[None]:
        """Gives its GPU memory away for as long as the context lasts: weights to main memory, the cache dropped.

        It takes no new requests, which wait for it, and finishes those that it has. One that cannot sleep is ended; one
        elsewhere is said to be awake. Waits for an engine that is being started. Afterwards its supervisor wakes it up.
        """
        async with self._changing:
            self.resting = True
            self._ready.clear()
            try:
                await self._put_to_sleep()
                yield
            finally:
                self.resting = False

    async def load(self, name: str, path: Path) -> None:
        """Loads an adapter that is `wanted`. Raises AdapterRefused, or EngineError when vLLM goes away meanwhile."""
        try:
            with self.occupied():
                await self.client.load(name, path)
        except EngineLost as error:
            self.suspect()
            raise EngineError(f"vLLM went away while loading {name}: {error}") from error
        except AdapterRefused as error:
            raise AdapterRefused(f"{error}{self._remedy(path)}") from None
        self._held.add(name)

    async def unload(self, name: str) -> None:
        """Raises EngineError when vLLM refuses; what a vanished engine held is gone anyway."""
        self._held.discard(name)
        try:
            with self.occupied():
                await self.client.unload(name)
        except EngineLost:
            self.suspect()

    @asynccontextmanager
    async def chat(self, request: Mapping[str, Any]) -> AsyncIterator[Reply]:
        with self._suspected_when_lost():
            async with self.client.chat(request) as reply:
                yield reply

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
        """Something went wrong with it: no more requests until it has been looked at."""
        if self._watch and not self._watch.done():
            self._ready.clear()
            self._failure = failure or self._failure

    async def check(self) -> None:
        """Whether an engine that others run can serve this base model and its policies; see the protocol."""
        self.max_model_len = await self.client.check(sleeps=self._shares)

    @contextmanager
    def _suspected_when_lost(self) -> Iterator[None]:
        try:
            yield
        except EngineLost:
            self.suspect()
            raise

    def _remedy(self, path: Path) -> str:
        if self._child:
            return f" (its files are in {path})"
        return (
            f". It reads {path} itself: an engine on another machine needs the server's home directory at the same "
            "path (a shared file system), --enable-lora, and a --max-lora-rank that is large enough"
        )

    async def _sound(self) -> bool:
        """Alive, and holding what was loaded: an engine that somebody restarted in between holds nothing."""
        if (self._child and not self._child.running) or not await self.client.healthy():
            return False
        held = set(self._held)
        try:
            return held & self._held <= (await self.client.adapters()).keys()
        except EngineError:
            return False

    async def _take_in(self) -> None:
        """Waits for a child to answer, checks, loads what it should hold, and lets requests in."""
        deadline = time.monotonic() + START_TIMEOUT
        while not await self.client.healthy():
            if not self._child:
                raise EngineError(f"the engine at {self.url} does not answer")
            if not self._child.running:
                raise EngineError(f"vLLM ended while starting. The end of {self._child.log}:\n{self._child.tail()}")
            if time.monotonic() > deadline:
                raise EngineError(f"vLLM at {self.url} does not answer; look into {self._child.log}")
            await asyncio.sleep(0.1)
        await self.check()
        if self._shares:
            await self._wake_up()
        present = await self.client.adapters()
        if self._child:  # what was given up while it could not be told
            for name in present.keys() - self.wanted.keys():
                await self.unload(name)
        self._held = {name for name, path in self.wanted.items() if present.get(name) == str(path)}
        while missing := [name for name in self.wanted if name not in self._held]:
            name, path = missing[0], self.wanted[missing[0]]
            try:
                await self.load(name, path)
            except AdapterRefused as error:
                if not self._child and readable(path):
                    raise  # there for us and not for it: it would answer with whatever it has instead
                log.error("%s", error)
                self.wanted.pop(name, None)
        self._failure = None
        self._ready.set()

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
            else:
                log.error("the engine at %s does not sleep, and keeps its GPU memory: %s", self.url, error)

    async def _wake_up(self) -> None:
        """Also said to one that is awake, which it does not mind."""
        try:
            await self.client.wake_up()
        except EngineError as error:
            if self._child:
                await self._child.stop()
            raise EngineError(f"vLLM at {self.url} did not wake up: {error}") from error

    async def _supervise(self) -> None:
        failures = 0
        while True:
            await asyncio.sleep(_HEALTH_INTERVAL if self.ready else 0.1)
            if self.ready and await self._sound():
                failures = 0
                continue
            self._ready.clear()
            async with self._changing:  # after a rest it is here that it is woken up
                failures = await self._bring_back(failures)

    async def _bring_back(self, failures: int) -> int:
        """One try, after so many failures; returns how many there are now."""
        try:
            if self._child and not (self._child.running and await self.client.healthy()):
                log.warning("vLLM died (restart %d); its log is %s", self.restarts + 1, self._child.log)
                await self._child.stop()
                await asyncio.sleep(_BACKOFF[min(failures, len(_BACKOFF) - 1)])
                self.restarts += 1
                await self._child.start()
            await self._take_in()
            log.info("vLLM at %s is back with %d adapters", self.url, len(self._held))
        except (EngineError, OSError) as error:
            failures += 1
            if str(error) != self._failure:
                log.error("vLLM could not be brought back (try %d): %s", failures, error)
            self._failure = str(error)
            await asyncio.sleep(_BACKOFF[min(failures, len(_BACKOFF) - 1)] if self._child else _REMOTE_BACKOFF)
        return failures
