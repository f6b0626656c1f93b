"""One vLLM server behind the gateway: launched and supervised here, or running elsewhere (`--engine-url`)."""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx

from trainer_server.engines.served_model import BaseModel
from trainer_server.engines.vllm.command import command, environment, free_port
from trainer_server.process.child import Child
from trainer_server.wire import EngineError, Home

log = logging.getLogger("trainer_server")

START_TIMEOUT = 900.0
"""Seconds until vLLM must answer after its start; a large model on a cold disk takes minutes."""
_LOAD_TIMEOUT = 120.0
_HEALTH_INTERVAL = 1.0
_BACKOFF = (0.0, 1.0, 5.0, 15.0, 60.0)
"""Seconds before an engine that died again and again is started again."""
_REMOTE_BACKOFF = 2.0
"""Seconds between two looks at an engine elsewhere: asking costs it nothing."""
_DRAIN = 300.0
"""Seconds that an engine has for the answers that it is giving before it rests: a client that stopped reading must not
keep the trainer from its work for ever."""
_KEEPALIVE = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 30_000}
"""A generation may say nothing for as long as it takes, so it is TCP that tells when an engine's machine is gone: after
15 + 3 * 5 s on a quiet connection, 30,000 ms with unconfirmed bytes. What a platform lacks is left out."""
_SLEEP_TIMEOUT = 300.0
"""Seconds for moving an engine's weights between its GPU and main memory."""


def readable(adapter: Path) -> bool:
    """Whether an adapter's files are there, seen from here."""
    return (adapter / "adapter_config.json").exists()


def _keepalive() -> list[tuple[int, int, int]]:
    known = {getattr(socket, name): value for name, value in _KEEPALIVE.items() if hasattr(socket, name)}
    return [
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        *((socket.IPPROTO_TCP, option, value) for option, value in known.items()),
    ]


class AdapterRefused(EngineError):
    """vLLM is there, and does not load this adapter."""


class Engine:
    """A vLLM server and the adapters that it should hold.

    `wanted` is what the gateway has asked for. An engine that was away holds all of it before it is `ready` again.
    """

    def __init__(
        self, url: str, api_key: str | None, *, base: str, cpu: bool, child: Child | None = None, shares: bool = False
    ) -> None:
        """shares: its GPUs are the trainer's too, by turns; see `rest`."""
        self.url = url
        self.cpu = cpu
        self.resting = False
        self._shares = shares
        self._changing = asyncio.Lock()  # held while it is started, brought back, or resting
        self.wanted: dict[str, Path] = {}
        self.busy = 0
        """Requests that it is answering, and adapters that it is loading or giving up."""
        self.restarts = 0
        self.max_model_len: int | None = None
        self._base = base
        self._child = child
        self._held: set[str] = set()
        self._ready = asyncio.Event()
        self._failure: str | None = None
        self._watch: asyncio.Task[None] | None = None
        self.client = httpx.AsyncClient(
            base_url=url,
            headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
            timeout=httpx.Timeout(None, connect=10.0),  # a generation takes as long as it takes; clients bound it
            transport=httpx.AsyncHTTPTransport(
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=256),
                socket_options=_keepalive(),
            ),
        )

    @classmethod
    def launch(
        cls,
        base: BaseModel,
        home: Home,
        *,
        cpu: bool,
        max_loras: int,
        max_rank: int,
        kv_cache_gib: int,
        extra: Sequence[str] = (),
        name: str = "engine",
        gpus: str | None = None,
        shares: bool = False,
    ) -> Engine:
        """An engine that this server starts on a private port. name: of its log. gpus: see `environment`."""
        port, key = free_port(), secrets.token_urlsafe(24)
        line = command(base, home, port, max_loras=max_loras, max_rank=max_rank, cpu=cpu, extra=extra, sleeps=shares)
        variables = environment(base, key, kv_cache_gib=kv_cache_gib, gpus=gpus, sleeps=shares)
        child = Child(name, line, home.logs, variables)
        return cls(f"http://127.0.0.1:{port}", key, base=base.name, cpu=cpu, child=child, shares=shares)

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
            "url": self.url, "ready": self.ready, "resting": self.resting, "error": self._failure,
            "requests": self.busy, "restarts": self.restarts, "adapters": sorted(self._held),
            "max_model_len": self.max_model_len,
        }  # fmt: skip

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
        except (EngineError, httpx.HTTPError, OSError) as error:
            self._failure = str(error)
            log.error("not in use: %s", error)
        self._watch = asyncio.create_task(self._supervise(), name="engine-supervisor")

    async def stop(self) -> None:
        if self._watch:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        self._ready.clear()
        await self.client.aclose()
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

    async def load_adapter(self, name: str, path: Path) -> None:
        """Loads an adapter that is `wanted`. Raises AdapterRefused, or EngineError when vLLM goes away meanwhile."""
        body = {"lora_name": name, "lora_path": str(path)}
        try:
            with self.occupied():
                answer = await self.client.post("/v1/load_lora_adapter", json=body, timeout=_LOAD_TIMEOUT)
                if "already been loaded" in answer.text and (await self._adapters()).get(name) not in (None, str(path)):
                    # Of another server, or of another home: other weights under our name.
                    await self.unload_adapter(name)
                    answer = await self.client.post("/v1/load_lora_adapter", json=body, timeout=_LOAD_TIMEOUT)
        except httpx.HTTPError as error:
            self.suspect()
            raise EngineError(f"vLLM at {self.url} went away while loading {name}: {error!r}") from error
        if answer.status_code in (502, 503, 504):
            raise EngineError(f"{self.url} answered {answer.status_code} to loading {name}: {answer.text[:200]}")
        if answer.status_code != 200 and "already been loaded" not in answer.text:
            raise AdapterRefused(f"vLLM at {self.url} refused adapter {name}: {answer.text[:500]}{self._remedy(path)}")
        self._held.add(name)

    async def unload_adapter(self, name: str) -> None:
        """Raises EngineError when vLLM refuses; what a vanished engine held is gone anyway."""
        self._held.discard(name)
        body = {"lora_name": name}
        try:
            with self.occupied():
                answer = await self.client.post("/v1/unload_lora_adapter", json=body, timeout=_LOAD_TIMEOUT)
        except httpx.HTTPError:
            self.suspect()
            return
        if answer.status_code not in (200, 404):
            raise EngineError(f"vLLM at {self.url} did not unload {name}: {answer.text[:500]}")

    def suspect(self, failure: str | None = None) -> None:
        """Something went wrong with it: no more requests until it has been looked at."""
        if self._watch and not self._watch.done():
            self._ready.clear()
            self._failure = failure or self._failure

    async def answers(self) -> bool:
        """Whether vLLM and the engine loop behind its front end are alive."""
        try:
            return (await self.client.get("/health", timeout=10)).status_code == 200
        except httpx.HTTPError:
            return False

    async def check(self) -> None:
        """Whether an engine that others run can serve this base model and its policies. Raises EngineError with the
        remedy when it cannot, httpx.HTTPError when it does not answer."""
        models = await self._models()
        served = [one["id"] for one in models if not one.get("parent")]
        if self._base not in served:
            raise EngineError(
                f"the engine at {self.url} serves {', '.join(served) or 'nothing'}, and this server trains "
                f"{self._base}: start that vLLM on the same model with --served-model-name {self._base}, or take its "
                "URL away"
            )
        # A body that names nothing is refused, where the route exists.
        if (await self.client.post("/v1/load_lora_adapter", json={}, timeout=30)).status_code in (404, 405):
            raise EngineError(
                f"the engine at {self.url} loads no adapters at run time: start that vLLM with --enable-lora and with "
                "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 in its environment"
            )
        if self._shares and (await self.client.get("/is_sleeping", timeout=30)).status_code == 404:
            raise EngineError(
                f"the engine at {self.url} cannot give its GPU memory away for a while, as --share-gpu wants it: start "
                "that vLLM with --enable-sleep-mode and with VLLM_SERVER_DEV_MODE=1 in its environment"
            )
        self.max_model_len = next((one["max_model_len"] for one in models if one.get("max_model_len")), None)

    def _remedy(self, path: Path) -> str:
        if self._child:
            return f" (its files are in {path})"
        return (
            f". It reads {path} itself: an engine on another machine needs the server's home directory at the same "
            "path (a shared file system), --enable-lora, and a --max-lora-rank that is large enough"
        )

    async def _models(self) -> list[dict[str, Any]]:
        """What vLLM serves: base models, and adapters, which have a `parent`."""
        answer = await self.client.get("/v1/models", timeout=30)
        if answer.status_code in (401, 403):
            raise EngineError(
                f"the engine at {self.url} refuses the key: set ART_ENGINE_API_KEY to what vLLM was given by "
                "--api-key or VLLM_API_KEY, the same for all engines"
            )
        try:
            return list(answer.json()["data"])
        except (ValueError, KeyError, TypeError):
            raise EngineError(
                f"{self.url}/v1/models answered {answer.status_code} and no list of models: --engine-url must name the "
                "root of a vLLM server"
            ) from None

    async def _adapters(self) -> dict[str, str]:
        """Name and path of what vLLM holds."""
        return {one["id"]: str(one.get("root")) for one in await self._models() if one.get("parent")}

    async def _sound(self) -> bool:
        """Alive, and holding what was loaded: an engine that somebody restarted in between holds nothing."""
        if (self._child and not self._child.running) or not await self.answers():
            return False
        held = set(self._held)
        try:
            return held & self._held <= (await self._adapters()).keys()
        except (EngineError, httpx.HTTPError):
            return False

    async def _take_in(self) -> None:
        """Waits for a child to answer, checks, loads what it should hold, and lets requests in."""
        deadline = time.monotonic() + START_TIMEOUT
        while not await self.answers():
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
        present = await self._adapters()
        if self._child:  # what was given up while it could not be told
            for name in present.keys() - self.wanted.keys():
                await self.unload_adapter(name)
        self._held = {name for name, path in self.wanted.items() if present.get(name) == str(path)}
        while missing := [name for name in self.wanted if name not in self._held]:
            name, path = missing[0], self.wanted[missing[0]]
            try:
                await self.load_adapter(name, path)
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
            how = {"level": "1", "mode": "abort"}
            (await self.client.post("/sleep", params=how, timeout=_SLEEP_TIMEOUT)).raise_for_status()
        except httpx.HTTPError as error:
            if self._child:
                log.warning("vLLM does not sleep, and is ended for this step: %r", error)
                await self._child.stop()
            else:
                log.error("the engine at %s does not sleep, and keeps its GPU memory: %r", self.url, error)

    async def _wake_up(self) -> None:
        """Also said to one that is awake, which it does not mind."""
        try:
            (await self.client.post("/wake_up", timeout=_SLEEP_TIMEOUT)).raise_for_status()
        except httpx.HTTPError as error:
            if self._child:
                await self._child.stop()
            raise EngineError(f"vLLM at {self.url} did not wake up: {error!r}") from error

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
            if self._child and not (self._child.running and await self.answers()):
                log.warning("vLLM died (restart %d); its log is %s", self.restarts + 1, self._child.log)
                await self._child.stop()
                await asyncio.sleep(_BACKOFF[min(failures, len(_BACKOFF) - 1)])
                self.restarts += 1
                await self._child.start()
            await self._take_in()
            log.info("vLLM at %s is back with %d adapters", self.url, len(self._held))
        except (EngineError, httpx.HTTPError, OSError) as error:
            failures += 1
            if str(error) != self._failure:
                log.error("vLLM could not be brought back (try %d): %s", failures, error)
            self._failure = str(error)
            await asyncio.sleep(_BACKOFF[min(failures, len(_BACKOFF) - 1)] if self._child else _REMOTE_BACKOFF)
        return failures
