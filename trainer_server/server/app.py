"""The ASGI application: the server behind its routes. Host, token, size, scope and limits of a request are checked
before them, and what it did is written into the audit log."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from importlib.metadata import version
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI

from trainer_server.common import tracing
from trainer_server.common.extensions import DASHBOARD, extension_of, find
from trainer_server.engines.base import EngineLost
from trainer_server.gateway.errors import APIError
from trainer_server.process.tasks import PeriodicTask
from trainer_server.server.access.audit import AuditLog
from trainer_server.server.access.auth import BearerAuth, KnownHosts
from trainer_server.server.access.bodies import Bodies
from trainer_server.server.access.layers import (
    AuditLayer,
    RequestIds,
    RequestTimer,
    RolloutPaths,
    StopHandler,
    TraceLayer,
    TrainerRoutes,
)
from trainer_server.server.access.quotas import QuotaLayer
from trainer_server.server.access.request_log import RequestLog
from trainer_server.server.access.scopes import RULES, check_owner, check_scope
from trainer_server.server.access.tokens import Keyring, TokenRepository
from trainer_server.server.config import ServerConfig
from trainer_server.server.errors import add_error_handlers
from trainer_server.server.metrics.state import State
from trainer_server.server.routes import ROUTERS
from trainer_server.server.server import Server, make_engines, resolve_base
from trainer_server.wire import ConfigError

log = logging.getLogger("trainer_server")

_LAST_SPANS = 5.0
"""Seconds that a server which ends waits for its last spans to be sent."""
SERVICE = "art-langgraph-server"
"""The name of this service in traces."""
_USES_WRITTEN = 30.0
"""Seconds between two times at which is written down when tokens were used."""


def create_app(config: ServerConfig, token: str) -> FastAPI:
    """The ASGI application.

    Args:
        config: The server's options.
        token: The server's own key, which may do everything. The named tokens are in the home.

    Raises:
        ConfigError, EngineError, LedgerError: Settings that cannot work.
    """
    server = Server(config)
    server.series.register(State(server))
    engine_key = config.engine_api_key if config.engine_urls else None
    keys = Keyring(token, TokenRepository(config.home), engine_key=engine_key)
    requests = RequestLog(AuditLog(config.home))
    dashboard = find(f"{DASHBOARD}.views")
    logins = dashboard.Sessions(keys) if dashboard else None

    async def write_uses() -> None:
        await asyncio.sleep(_USES_WRITTEN)
        await asyncio.to_thread(keys.write_uses)

    uses = PeriodicTask("record of when tokens were used", write_uses)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        await server.start()
        uses.start()
        try:
            yield
        finally:
            await asyncio.gather(uses.stop(), server.stop(), requests.close())
            with suppress(ConfigError, OSError):  # only the time of the last use is lost
                await asyncio.to_thread(keys.write_uses)
            with suppress(TimeoutError):  # the signal that ends the process leaves no time afterwards
                await asyncio.wait_for(asyncio.to_thread(tracing.flush), _LAST_SPANS)

    app = FastAPI(
        title="art-langgraph trainer server",
        version=version("art-langgraph"),
        lifespan=lifespan,
        openapi_url=None,  # FastAPI's own route would answer tokens of every scope
        docs_url=None,
        redoc_url=None,
    )

    @app.api_route("/openapi.json", methods=["GET", "HEAD"], include_in_schema=False)
    def openapi(_scope_check: Annotated[None, Depends(check_scope)]) -> dict[str, Any]:
        """The contract of the HTTP API."""
        return app.openapi()

    app.state.server, app.state.sessions = server, logins
    for router in (*ROUTERS, *(dashboard.ROUTERS if dashboard else [_absent_routes(DASHBOARD)])):
        app.include_router(router, dependencies=[Depends(check_scope), Depends(check_owner)])
    app.add_middleware(AuditLayer, requests=requests)
    app.add_middleware(QuotaLayer, quotas=server.quotas)
    app.add_middleware(RolloutPaths)  # the last that is added is the outermost
    app.add_middleware(Bodies, most_mib=config.max_body_mib)
    if config.gateway_of is not None:
        app.add_middleware(TrainerRoutes, trainer=config.gateway_of)
    app.add_middleware(BearerAuth, keys=keys, logins=logins, requests=requests)
    app.add_middleware(KnownHosts, hosts=(config.host, *config.allowed_hosts))
    app.add_middleware(RequestTimer, count=server.counters.count_request)
    app.add_middleware(StopHandler)
    if tracing.on(SERVICE):
        app.add_middleware(TraceLayer)
    app.add_middleware(RequestIds, logged=config.logs.requests)
    add_error_handlers(app)
    return app


def _absent_routes(module: str) -> APIRouter:
    """The routes of an extension that is absent: each answers 501 with what is missing."""
    router, extension = APIRouter(include_in_schema=False), extension_of(module)
    assert extension is not None

    async def refuse() -> None:
        try:
            extension.refuse()
        except ConfigError as error:
            raise APIError(501, str(error), code="extension_missing") from None

    for name, rule in RULES.items():
        if rule.extension == module:
            method, path = name.split()
            router.add_api_route(path, refuse, methods=[method])
    return router


async def check_engines(config: ServerConfig) -> None:
    """Looks at the engines at `--engine-url`. One that does not answer yet may come later.

    Raises:
        EngineError: An engine cannot serve this base model; see Engine.check.
    """
    if not config.engine_urls:
        return
    for engine in make_engines(config, resolve_base(config)):
        try:
            await engine.check()
        except EngineLost as error:
            log.warning("an engine does not answer yet: %s", error)
        finally:
            await engine.stop()
