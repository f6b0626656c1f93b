"""The ASGI application: the server behind its routes; Host, token and size of a request are checked before them."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from trainer_server.engines.base import EngineLost
from trainer_server.server.access.auth import BearerAuth, KnownHosts
from trainer_server.server.access.bodies import Bodies
from trainer_server.server.access.connections import Stopped
from trainer_server.server.config import ServerConfig
from trainer_server.server.dashboard import views
from trainer_server.server.dashboard.sessions import Sessions
from trainer_server.server.errors import add_error_handlers
from trainer_server.server.metrics.counters import Measured, NamedRoute
from trainer_server.server.metrics.state import State
from trainer_server.server.rollout_paths import RolloutPaths
from trainer_server.server.routes import ROUTERS
from trainer_server.server.server import Server, make_engines, resolve_base

log = logging.getLogger("trainer_server")


def create_app(config: ServerConfig, token: str) -> FastAPI:
    """The ASGI application.

    Args:
        config: What `serve` was asked for.
        token: The bearer token that requests must carry.

    Raises:
        ConfigError, EngineError, LedgerError: Settings that cannot work.
    """
    server = Server(config)
    server.series.register(State(server))
    sessions = Sessions(token)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        await server.start()
        try:
            yield
        finally:
            await server.stop()

    app = FastAPI(
        title="art-langgraph trainer server", version="0.1.0", lifespan=lifespan, docs_url=None, redoc_url=None
    )
    app.state.server, app.state.sessions = server, sessions
    for router in (*ROUTERS, *views.ROUTERS):
        app.include_router(router)
    app.add_middleware(NamedRoute)
    app.add_middleware(RolloutPaths)  # the last that is added is the first to be asked
    app.add_middleware(Bodies, most_mib=config.max_body_mib)
    app.add_middleware(BearerAuth, token=token, sessions=sessions)
    app.add_middleware(KnownHosts, hosts=(config.host, *config.allowed_hosts))
    app.add_middleware(Measured, counters=server.counters)
    app.add_middleware(Stopped)
    add_error_handlers(app)
    return app


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
