"""The server put together: state under its home, engines, gateway, trainer, and the routes in front of them."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import secrets
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from trainer_server.engines.base import Engine, EngineLost, EngineSettings
from trainer_server.engines.pool import Engines
from trainer_server.engines.registry import engine_factory
from trainer_server.engines.served_model import ServedModel, resolve
from trainer_server.engines.slots import Slots
from trainer_server.gateway.errors import APIError
from trainer_server.gateway.gateway import Gateway
from trainer_server.gateway.recorder import Identity, Recorder
from trainer_server.jobs.board import JobBoard
from trainer_server.jobs.service import Trainer
from trainer_server.ledger.sqlite import Ledger
from trainer_server.policies.export import Exports
from trainer_server.policies.leases import Leases
from trainer_server.policies.names import PolicyNames
from trainer_server.policies.store import AdapterStore
from trainer_server.process.files import write_atomic
from trainer_server.process.hardware import flavour
from trainer_server.server import dashboard
from trainer_server.server.auth import BearerAuth
from trainer_server.server.config import ServerConfig
from trainer_server.server.routes import router
from trainer_server.wire import NAME_PATTERN, ConfigError

log = logging.getLogger("trainer_server")

_PURGE_INTERVAL = 3600.0


class Server:
    """Everything that lives as long as the server does."""

    def __init__(self, config: ServerConfig, token: str) -> None:
        self.config = config
        self.token = token
        home = config.home
        base = resolve(config.model, home.cache, log.info)
        self.identity = Identity(_server_id(config), base, base.tokenizer_fingerprint())
        self.fingerprint = base.fingerprint()
        self.ledger = Ledger(home.ledger)
        self.store = AdapterStore(home.policies)
        self.leases = Leases(config.lease)
        self.engines = Engines(_engines(config, base))
        self.names = PolicyNames(self.store)
        self.slots = Slots(
            engines=self.engines,
            capacity=config.adapter_slots,
            directory=self.store.directory,
            pinned=self.leases.versions,
            is_newest=self.names.is_newest,
            wait=config.slot_wait,
        )
        self.recorder = Recorder(self.identity, self.ledger)
        self.gateway = Gateway(
            config=config,
            recorder=self.recorder,
            store=self.store,
            names=self.names,
            slots=self.slots,
            leases=self.leases,
            engines=self.engines,
        )
        self.trainer = Trainer(
            config=config,
            base=base,
            tokenizer=self.identity.tokenizer,
            board=JobBoard(home.jobs),
            names=self.names,
            slots=self.slots,
            engines=self.engines,
        )
        self._take_up_policies()
        self.exports = Exports(config.home, base, self.store, self.trainer.retention)
        self.creating: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        """By policy."""
        self.failure: str | None = None
        self._tasks: list[asyncio.Task[None]] = []

    def _take_up_policies(self) -> None:
        """Finds out what can be served. What cannot be keeps none of the others from it."""
        for name in self.store.names():
            if why := self._hindrance(name):
                log.error("not served: %s", why)
                self.names.unserved[name] = why
            elif (version := self.trainer.served(name)) is not None:
                self.names.newest[name] = version

    def _hindrance(self, name: str) -> str | None:
        """Why a policy cannot be served, or None."""
        if why := self.store.other_base(name, self.identity.base.name, self.fingerprint):
            return why
        spec = self.store.spec(name)
        if spec and spec.rank > self.config.max_rank:
            return (
                f"policy {name!r} has rank {spec.rank}, and the engine is started for {self.config.max_rank}: "
                f"serve with --max-rank {spec.rank}"
            )
        for number, problem in self.store.broken_newest(name).items():
            log.error("%s", self.store.quarantine(name, number, problem))
        quarantined = self.store.quarantined(name)
        if quarantined and not self.store.versions(name):
            return f"policy {name!r} has no version that can be used: {' '.join(quarantined.values())}"
        return None

    @property
    def ready(self) -> bool:
        return bool(self.engines.live)

    def valid_name(self, name: str) -> bool:
        return re.fullmatch(NAME_PATTERN, name) is not None

    async def start(self) -> None:
        """Starts the trainer and, in the background, the engines; `/health` tells when they are ready."""
        await self.trainer.start()
        self._tasks = [asyncio.create_task(self._start_engines()), asyncio.create_task(self._purge())]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(self.trainer.stop(), *(engine.stop() for engine in self.engines))
        await self.recorder.close()
        await asyncio.to_thread(self.ledger.close)

    async def _start_engines(self) -> None:
        started = (engine.start(log.info) for engine in self.engines)
        for error in await asyncio.gather(*started, return_exceptions=True):
            if error is not None:
                self.failure = f"{type(error).__name__}: {error}"
                log.error("an engine could not be started", exc_info=error)

    async def _purge(self) -> None:
        while True:
            try:
                gone = await asyncio.to_thread(self.ledger.purge, keep=self.trainer.named_completions())
                if gone:
                    log.info("%d completions past their retention were deleted from the ledger", gone)
            except Exception:  # a full disk, say: tried again in an hour, for as long as the server lives
                log.exception("completions past their retention could not be deleted from the ledger")
            await asyncio.sleep(_PURGE_INTERVAL)


async def check_engines(config: ServerConfig) -> None:
    """Raises EngineError for an engine at `--engine-url` that cannot serve this base model; see Engine.check. One that
    does not answer yet may come later."""
    base = resolve(config.model, config.home.cache, log.info)
    for engine in _engines(config, base) if config.engine_urls else ():
        try:
            await engine.check()
        except EngineLost as error:
            log.warning("an engine does not answer yet: %s", error)
        finally:
            await engine.stop()


def create_app(config: ServerConfig, token: str) -> FastAPI:
    """The ASGI application. Raises ConfigError, EngineError for settings that cannot work."""
    server = Server(config, token)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await server.start()
        try:
            yield
        finally:
            await server.stop()

    app = FastAPI(title="art-langgraph trainer server", version="0.1.0", lifespan=lifespan, docs_url=None,
                  redoc_url=None)  # fmt: skip
    app.state.server = server
    app.include_router(router)
    app.include_router(dashboard.router)

    app.add_middleware(BearerAuth, token=token)

    @app.exception_handler(APIError)
    async def refuse(_request: Request, error: APIError) -> Response:
        return error.response()

    @app.exception_handler(RequestValidationError)
    async def invalid(_request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"] if part != "body")
        return APIError(422, f"{where or 'body'}: {first['msg']}", code="invalid_request", param=where).response()

    @app.exception_handler(HTTPException)
    async def no_route(request: Request, error: HTTPException) -> Response:
        return APIError(error.status_code, f"{request.method} {request.url.path}: {error.detail}").response()

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        """OpenAI's chat completions, streaming and not."""
        return await server.gateway.chat(request)

    @app.get("/v1/models")
    async def models() -> dict[str, object]:
        """The base model, the policies, and their versions."""
        return server.gateway.models()

    @app.get("/health")
    async def health() -> dict[str, object]:
        """Whether completions can be answered now, and why not; how many engines can."""
        failure = server.failure or next((e.failure for e in server.engines if e.failure), None)
        engines = [engine.ready for engine in server.engines]
        return {
            "ready": server.ready, "engines": engines, "trainer": server.trainer.process.running, "error": failure,
        }  # fmt: skip

    @app.get("/api/engines")
    async def engines() -> dict[str, object]:
        """Each engine: its address, state, requests under way, and the adapters that it holds."""
        return {"engines": [engine.describe() for engine in server.engines]}

    return app


def _engines(config: ServerConfig, base: ServedModel) -> Sequence[Engine]:
    """The engines that `serve` was asked for, not yet started. Raises ConfigError."""
    if config.share_gpu and (config.trainer_processes > 1 or config.accelerate_config):
        raise ConfigError("--share-gpu is for a trainer of one process; with more GPUs, give the trainer its own")
    settings = EngineSettings(
        base=base,
        home=config.home,
        cpu=flavour() == "cpu",
        urls=config.engine_urls,
        api_key=config.engine_api_key,
        gpus=config.engine_gpus,
        args=config.engine_args,
        adapter_slots=config.adapter_slots,
        max_rank=config.max_rank,
        kv_cache_gib=config.kv_cache_gib,
        share_gpu=config.share_gpu,
    )
    return engine_factory(config.engine)(settings)


def _server_id(config: ServerConfig) -> str:
    """Identifies this home across restarts: completions carry it."""
    path = config.home.root / "identity.json"
    if not path.exists():
        write_atomic(path, json.dumps({"server_id": f"srv-{secrets.token_hex(8)}"}))
    return str(json.loads(path.read_text())["server_id"])
