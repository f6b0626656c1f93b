"""One vLLM server behind the gateway: launched and supervised here, or running elsewhere (`--engine-url`)."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import httpx

from trainer_server.engine_install import engine_python
from trainer_server.models import BaseModel
from trainer_server.process import Child
from trainer_server.wire import EngineError, Home

log = logging.getLogger("trainer_server")

PLUGINS = Path(__file__).parent / "engine_plugins"
START_TIMEOUT = 900.0
"""Seconds until vLLM must answer after its start; a large model on a cold disk takes minutes."""
_HEALTH_INTERVAL = 1.0
_BACKOFF = (0.0, 1.0, 5.0, 15.0, 60.0)


class AdapterRefused(EngineError):
    """vLLM answered, and did not take an adapter: damaged, too large a rank, not for this base model."""


def command(
    base: BaseModel, home: Home, port: int, *, max_loras: int, max_rank: int, cpu: bool, extra: Sequence[str] = ()
) -> list[str]:
    """The command line of vLLM for a base model."""
    return [
        str(engine_python(home.cache)), "-m", "vllm.entrypoints.openai.api_server",
        "--model", base.path, "--served-model-name", base.name,
        "--host", "127.0.0.1", "--port", str(port), "--api-server-count", "1",
        "--enable-lora", "--max-loras", str(max_loras), "--max-cpu-loras", str(max_loras),
        "--max-lora-rank", str(max_rank),
        "--logprobs-mode", "processed_logprobs", "--generation-config", "vllm",
        "--uvicorn-log-level", "warning",
        *(("--max-model-len", "8192") if cpu and base.name == "SmolLM2-135M-Instruct" else ()),
        *base.engine_args, *extra,
    ]  # fmt: skip


def environment(base: BaseModel, api_key: str, *, kv_cache_gib: int) -> dict[str, str]:
    """vLLM's environment: the key stays off the command line, where every user of the machine could read it."""
    return {
        "VLLM_API_KEY": api_key,
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
        "VLLM_CPU_KVCACHE_SPACE": str(kv_cache_gib),
        # vLLM keeps one core free for its own front end: of two cores, half the machine.
        **({"VLLM_CPU_NUM_OF_RESERVED_CPU": "0"} if (os.cpu_count() or 1) <= 4 else {}),
        "PYTHONPATH": str(PLUGINS),
        **({"HF_HUB_OFFLINE": "1"} if base.local else {}),
    }


def free_port() -> int:
    """A port on the loopback interface that nobody uses right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Engine:
    """A vLLM server and the adapters that it should hold.

    `loaded` is what the gateway has asked for; when vLLM comes back from a crash, its adapters do too, before `ready`.
    """

    def __init__(self, url: str, api_key: str | None, *, cpu: bool, child: Child | None = None) -> None:
        self.url = url
        self.cpu = cpu
        self.loaded: dict[str, Path] = {}
        self.restarts = 0
        self.max_model_len: int | None = None
        self._child = child
        self._ready = asyncio.Event()
        self._failure: str | None = None
        self._watch: asyncio.Task[None] | None = None
        self.client = httpx.AsyncClient(
            base_url=url,
            headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
            timeout=httpx.Timeout(None, connect=10.0),  # a generation takes as long as it takes; clients bound it
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=256),
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
    ) -> Engine:
        """An engine that this server starts on a private port."""
        port, key = free_port(), secrets.token_urlsafe(24)
        line = command(base, home, port, max_loras=max_loras, max_rank=max_rank, cpu=cpu, extra=extra)
        child = Child("engine", line, home.logs, environment(base, key, kv_cache_gib=kv_cache_gib))
        return cls(f"http://127.0.0.1:{port}", key, cpu=cpu, child=child)

    @property
    def ready(self) -> bool:
        return self._ready.is_set()

    @property
    def failure(self) -> str | None:
        """Why the engine cannot be used at all, once that is certain."""
        return self._failure

    async def start(self, progress: Callable[[str], None] = lambda _: None) -> None:
        """Starts vLLM and waits until it answers. Raises EngineError with the end of its log when it dies instead."""
        started = time.monotonic()
        if self._child:
            await self._child.start()
        await self._until_healthy(started + START_TIMEOUT)
        await self._restore()
        progress(f"vLLM is ready ({time.monotonic() - started:.0f} s)")
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
            raise EngineError(self._failure or f"vLLM is not ready after {timeout:.0f} s") from None

    async def load_adapter(self, name: str, path: Path) -> None:
        """Loads an adapter; remembered, so that it comes back after a crash. Raises EngineError."""
        await self._load(name, path)
        self.loaded[name] = path

    async def unload_adapter(self, name: str) -> None:
        self.loaded.pop(name, None)
        try:
            answer = await self.client.post("/v1/unload_lora_adapter", json={"lora_name": name}, timeout=120)
        except httpx.HTTPError as error:
            raise EngineError(f"vLLM went away while unloading {name}: {error!r}") from error
        if answer.status_code not in (200, 404):
            raise EngineError(f"vLLM did not unload {name}: {answer.text[:500]}")

    def suspect(self) -> None:
        """A request met a broken connection: stop trusting the engine until it has been looked at."""
        if self._watch and not self._watch.done():
            self._ready.clear()

    async def _load(self, name: str, path: Path) -> None:
        try:
            answer = await self.client.post(
                "/v1/load_lora_adapter", json={"lora_name": name, "lora_path": str(path)}, timeout=120
            )
        except httpx.HTTPError as error:
            raise EngineError(f"vLLM went away while loading {name}: {error!r}") from error
        if answer.status_code in (502, 503, 504):
            raise EngineError(f"{self.url} answered {answer.status_code} to loading {name}: {answer.text[:200]}")
        if answer.status_code != 200 and "already been loaded" not in answer.text:
            raise AdapterRefused(f"vLLM refused adapter {name}: {answer.text[:500]}")

    async def _healthy(self) -> bool:
        try:
            return (await self.client.get("/health", timeout=10)).status_code == 200
        except httpx.HTTPError:
            return False

    async def _until_healthy(self, deadline: float) -> None:
        while not await self._healthy():
            if self._child and not self._child.running:
                raise EngineError(f"vLLM ended while starting. The end of {self._child.log}:\n{self._child.tail()}")
            if time.monotonic() > deadline:
                raise EngineError(f"vLLM at {self.url} does not answer; look into its log")
            await asyncio.sleep(0.1 if self._child else 1.0)
        models = (await self.client.get("/v1/models", timeout=30)).raise_for_status().json()["data"]
        self.max_model_len = next((m["max_model_len"] for m in models if m.get("max_model_len")), None)

    async def _restore(self) -> None:
        """Loads what vLLM should hold and does not, and says ready."""
        models = (await self.client.get("/v1/models", timeout=30)).raise_for_status().json()["data"]
        present = {m["id"] for m in models}
        for name, path in list(self.loaded.items()):
            if name not in present:
                try:
                    await self._load(name, path)
                except AdapterRefused as error:  # no reason to keep all others waiting; asked for, it is tried again
                    log.error("%s", error)
                    del self.loaded[name]
        self._ready.set()

    async def _supervise(self) -> None:
        failures = 0
        while True:
            await asyncio.sleep(_HEALTH_INTERVAL if self.ready else 0.1)
            if self.ready and (self._child is None or self._child.running) and await self._healthy():
                failures = 0
                continue
            self._ready.clear()
            try:
                if self._child and not (self._child.running and await self._healthy()):
                    log.warning("vLLM died (restart %d); its log is %s", self.restarts + 1, self._child.log)
                    await self._child.stop()
                    await asyncio.sleep(_BACKOFF[min(failures, len(_BACKOFF) - 1)])
                    self.restarts += 1
                    await self._child.start()
                await self._until_healthy(time.monotonic() + START_TIMEOUT)
                await self._restore()
                self._failure = None
                log.info("vLLM is back with %d adapters", len(self.loaded))
            except (EngineError, httpx.HTTPError, OSError) as error:
                failures += 1
                self._failure = str(error)
                log.error("vLLM could not be brought back (try %d): %s", failures, error)
                await asyncio.sleep(_BACKOFF[min(failures, len(_BACKOFF) - 1)])
