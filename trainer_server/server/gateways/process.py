"""A gateway process: answers completions, asks its parent for what has to be decided once, and passes all else on."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from contextvars import ContextVar
from itertools import count
from typing import Any

from fastapi import FastAPI
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trainer_server.common import tracing
from trainer_server.engines.base import Engine, EngineSettings
from trainer_server.engines.registry import engine_factory
from trainer_server.gateway.gateway import CompletionGateway
from trainer_server.gateway.parser import Parser
from trainer_server.gateway.recorder import Recorder
from trainer_server.gateway.splice.splicer import SpliceMode
from trainer_server.ledger.redaction import Redaction
from trainer_server.ledger.registry import open_ledger
from trainer_server.process import logs
from trainer_server.process.hardware import flavour
from trainer_server.server.access.auth import KnownHosts, secret_of
from trainer_server.server.access.bodies import Bodies
from trainer_server.server.access.connections import DrainingServer
from trainer_server.server.access.layers import (
    Layer,
    RequestIds,
    RequestTimer,
    RolloutPaths,
    StopHandler,
    TraceLayer,
)
from trainer_server.server.access.quotas import is_counted, tokens_of
from trainer_server.server.access.scopes import set_token, token_of
from trainer_server.server.access.tokens import Keyring, Token, TokenRepository
from trainer_server.server.access.tokens import Scope as TokenScope
from trainer_server.server.app import SERVICE
from trainer_server.server.errors import add_error_handlers, answer
from trainer_server.server.gateways.channel import Call, Channel, ChannelLost, first_note
from trainer_server.server.gateways.remote import RemoteLedger, RemoteSender, RemoteSources, RemoteSplicer
from trainer_server.server.gateways.setup import Setup
from trainer_server.server.routes.openai import router
from trainer_server.server.serve import SWITCH_INTERVAL, uvicorn_config
from trainer_server.wire import ARTError, Completion, ConfigError
from trainer_server.wire.headers import ROLLOUT

COMPLETION = re.compile(r"(?:/rollouts/[^/]*)?/v1/(?:chat/completions|completions|responses|messages)")
"""Addresses of completions, which a gateway process answers when they are posted."""
_USES_INTERVAL = 30.0
"""Seconds between two times at which is written down when tokens were used."""
_LAST_SPANS = 5.0
"""Seconds that a process which ends waits for its last spans to be sent."""

_token: ContextVar[Token | None] = ContextVar("charged_token", default=None)
"""The token that is charged for the request that is answered here."""


class GatewayProcess:
    """The application of a gateway process.

    Args:
        setup: What it begins with.
    """

    def __init__(self, setup: Setup) -> None:
        config = setup.config
        self.config = config
        self._requests: dict[int, tuple[Receive, Send]] = {}
        """Requests that were passed on, by number."""
        self._numbers = count()
        self.channel = Channel(
            {"receive": self._receive, "send": self._send}, {"stop": self._stop}, on_loss=self._on_loss
        )
        self.server: DrainingServer | None = None
        self._is_ending = False
        self._ledger = open_ledger(config.ledger, config.home)
        self._engines: list[Engine] = [
            engine_factory(config.engine)(
                EngineSettings(
                    base=setup.identity.base, home=config.home, cpu=flavour() == "cpu", urls=(url,), api_key=key
                )
            )[0]
            for url, key in setup.engines
        ]
        engine_key = config.engine_api_key if config.engine_urls else None
        self._keys = Keyring(setup.key, TokenRepository(config.home), engine_key=engine_key)
        parser = Parser(
            self._ledger, self._check_owner, max_tokens=config.max_tokens, media_domains=config.media_domains
        )
        self._recorder = Recorder(
            setup.identity, RemoteLedger(self._ledger, self.channel), (self._charge,), Redaction(config.redact)
        )
        self.gateway = CompletionGateway(
            parser,
            RemoteSources(self.channel),
            RemoteSplicer(SpliceMode(config.splice), self.channel),
            RemoteSender(self.channel, self._engines),
            self._recorder,
        )

    def app(self) -> ASGIApp:
        """The ASGI application. Its layers are those of `create_app` that concern completions."""
        app = FastAPI(lifespan=self._lifespan, openapi_url=None, docs_url=None, redoc_url=None)
        app.state.server = self
        app.include_router(router)
        app.add_middleware(_Entrance, channel=self.channel)
        app.add_middleware(RolloutPaths)  # the last that is added is the outermost
        app.add_middleware(Bodies, most_mib=self.config.max_body_mib)
        app.add_middleware(KnownHosts, hosts=(self.config.host, *self.config.allowed_hosts))
        app.add_middleware(RequestTimer, count=self._count_request)
        app.add_middleware(StopHandler)
        if tracing.on(SERVICE):
            app.add_middleware(TraceLayer)
        app.add_middleware(RequestIds, logged=self.config.logs.requests)
        add_error_handlers(app)
        return StopHandler(_Front(app, self._answering_token, self._forward))

    def _answering_token(self, scope: Scope) -> Token | None:
        """The token of a completion that is answered here; None: the parent answers the request, or refuses it."""
        if scope["method"] != "POST" or not COMPLETION.fullmatch(scope["path"]):
            return None
        try:
            token = self._keys.find(secret) if (secret := secret_of(Headers(scope=scope))) else None
        except ConfigError:
            return None
        usable = token is not None and not token.expired(time.time()) and token.scope.covers(TokenScope.rollout)
        return token if usable else None

    async def _forward(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on to the parent, and its answer to the client, part by part."""
        number = next(self._numbers)
        self._requests[number] = receive, send
        try:
            await self.channel.call("forward", scope, number)
        finally:
            del self._requests[number]

    async def _receive(self, _call: Call, number: int) -> Message:
        request = self._requests.get(number)
        return {"type": "http.disconnect"} if request is None else await request[0]()

    async def _send(self, _call: Call, number: int, message: Message) -> None:
        if (request := self._requests.get(number)) is not None:
            await request[1](message)

    async def _check_owner(self, request: Request, rollout: str) -> None:
        await self.channel.call("check_owner", token_of(request.scope), rollout)

    def _charge(self, completions: Sequence[Completion]) -> None:
        if (token := _token.get()) is not None and completions:
            self.channel.note("charge", token, tokens_of(completions))

    def _count_request(self, method: str, route: str | None, status: int, seconds: float) -> None:
        self.channel.note("count_request", method, route, status, seconds)

    def _stop(self) -> None:
        if self.server is not None:
            self.server.should_exit = True

    def _on_loss(self) -> None:
        """The parent has ended, and with it all that this process could answer."""
        if not self._is_ending:
            os._exit(1)

    @asynccontextmanager
    async def _lifespan(self, _app: FastAPI) -> AsyncIterator[None]:
        uses = asyncio.create_task(self._write_uses())
        try:
            yield
        finally:
            uses.cancel()
            await asyncio.gather(uses, return_exceptions=True)
            await self._recorder.close()
            await asyncio.gather(*(engine.stop() for engine in self._engines))
            with suppress(ConfigError, OSError):  # only the time of the last use is lost
                await asyncio.to_thread(self._keys.write_uses)
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.to_thread(tracing.flush), _LAST_SPANS)
            self._is_ending = True
            self.channel.close()
            await asyncio.to_thread(self._ledger.close)

    async def _write_uses(self) -> None:
        while True:
            await asyncio.sleep(_USES_INTERVAL)
            with suppress(ConfigError, OSError):
                await asyncio.to_thread(self._keys.write_uses)


class _Front:
    """Divides requests between this process and its parent.

    Args:
        app: Answers completions.
        token: Gives the token of a request that `app` answers; None: the parent does.
        forward: Passes a request on to the parent.
    """

    def __init__(self, app: ASGIApp, token: Any, forward: ASGIApp) -> None:
        self._app, self._token, self._forward = app, token, forward

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif (token := self._token(scope)) is None:
            await self._forward(scope, receive, send)
        else:
            set_token(scope, token)
            await self._app(scope, receive, send)


class _Entrance(Layer):
    """Has the parent count a request for its token, and look whether the token may use the rollout, as `QuotaLayer` and
    `check_owner` do.

    Args:
        app: The application behind it.
        channel: To the parent.
    """

    def __init__(self, app: ASGIApp, channel: Channel) -> None:
        super().__init__(app)
        self._channel = channel

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        token, rollout = token_of(scope), Headers(scope=scope).get(ROLLOUT)
        assert token is not None, "others are passed on"
        async with AsyncExitStack() as stack:
            if rollout or is_counted(token):
                try:
                    await stack.enter_async_context(self._channel.hold("enter", token, rollout))
                except ARTError as error:
                    await answer(error, scope["path"])(scope, receive, send)
                    return
            reset_token = _token.set(token if is_counted(token) else None)
            try:
                await self.app(scope, receive, send)
            finally:
                _token.reset(reset_token)


class _Server(DrainingServer):
    """uvicorn, which opens the channel before it takes connections.

    Args:
        process: The process.
        end: The process's end of the pair of sockets.
        config: uvicorn's.
    """

    def __init__(self, process: GatewayProcess, end: socket.socket, config: Any) -> None:
        super().__init__(config, grace=process.config.drain, end=process.gateway.stopping.set)
        self._process, self._channel_end = process, end
        process.server = self

    async def startup(self, sockets: list[Any] | None = None) -> None:
        await self._process.channel.open(self._channel_end)
        loop, note = asyncio.get_running_loop(), self._process.channel.note

        def log_line(line: dict[str, Any]) -> None:
            loop.call_soon_threadsafe(note, "log", line)

        logs.forward(log_line)
        await super().startup(sockets)


def run(listener: socket.socket, end: socket.socket) -> None:
    """Answers on a socket until the parent says stop, or ends."""
    try:
        (setup,) = first_note(end)
    except (ChannelLost, OSError):
        return
    if tracing.on(SERVICE):
        logs.context.append(tracing.ids)
    process = GatewayProcess(setup)
    sys.setswitchinterval(SWITCH_INTERVAL)
    _Server(process, end, uvicorn_config(process.app(), process.config)).run(sockets=[listener])
