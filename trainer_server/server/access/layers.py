"""Layers around the application that all requests pass, but for those that decide who may ask (auth.py),
how much (quotas.py), and how large bodies may be (bodies.py). `app.py` has their order."""

from __future__ import annotations

import asyncio
import logging
import re
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable
from urllib.parse import unquote

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trainer_server.common import tracing
from trainer_server.gateway.errors import APIError, stopping
from trainer_server.process.logs import about
from trainer_server.server.access.request_log import RequestLog
from trainer_server.server.access.scopes import answered_anywhere, rule_of, token_of
from trainer_server.wire import ROLLOUT_PATTERN
from trainer_server.wire.headers import REQUEST, ROLLOUT

log = logging.getLogger("trainer_server.requests")

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")
"""An id that a client may choose. Others are replaced: an id stands in the log as it is."""
_MOST_PATH = 500
"""Characters of a path in the log."""
_ROLLOUT_IN_PATH = re.compile(r"(?:/api)?/rollouts/(?!(?:erase|release|traces)$)([^/]+)")
_BASE_URL = re.compile(r"/rollouts/([^/]*)(/v1(?:/.*)?)", re.DOTALL)
_ROLLOUT_HEADER = ROLLOUT.lower().encode()


class Layer(ABC):
    """A layer around the application. Plain ASGI: streams and disconnects pass through untouched.

    What is no HTTP request passes by. An APIError that `handle` raises is the answer, in the shape of the client API.

    Args:
        app: The application behind it.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        try:
            await self.handle(scope, receive, send)
        except APIError as refusal:
            await refusal.response(scope["path"])(scope, receive, send)

    @abstractmethod
    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request, by `self.app` or by itself.

        Raises:
            APIError: The request is refused. Nothing of an answer has been sent.
        """


class _StatusSend:
    """A `send` that has the status of the answer.

    Args:
        send: The one that it calls.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self.status = 0
        """0: no answer has begun."""

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        await self._send(message)


class RequestIds(Layer):
    """Gives each request an id, that of the header `X-Request-Id` where the client named one. The answer has it there,
    and so have all lines of the log that are about the request.

    What a route raises by mistake is logged, and answered with status 500.

    Args:
        app: The application behind it.
        logged: Whether each request is a line of the log when it has been answered.
    """

    def __init__(self, app: ASGIApp, *, logged: bool = False) -> None:
        super().__init__(app)
        self._logged = logged

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers, method, path = Headers(scope=scope), scope["method"], scope["path"]
        id_of_client = headers.get(REQUEST, "")
        request = id_of_client if _ID.fullmatch(id_of_client) else f"req-{uuid.uuid4().hex}"
        start = time.perf_counter()

        async def send_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[REQUEST] = request
            await send(message)

        answer = _StatusSend(send_id)
        with about(request=request, rollout=_rollout_of(path, headers)):
            try:
                await self.app(scope, receive, answer)
            except Exception as error:  # at the edge of a request: it is logged with its id, and answered
                log.exception("the server failed on %s %s", method, path[:_MOST_PATH])
                if answer.status:
                    raise  # in the middle of an answer: the connection is closed, which the client notices
                text = f"the server failed on this request: {type(error).__name__}. Its log has more, under {request}"
                await APIError(500, text, code="fault").response(path)(scope, receive, answer)
            finally:
                if self._logged:
                    facts = {"method": method, "path": path[:_MOST_PATH], "status": answer.status}
                    log.info("request", extra={**facts, "seconds": round(time.perf_counter() - start, 4)})


def _rollout_of(path: str, headers: Headers) -> str | None:
    """The rollout of a request, by its path or its header; None: it has none, or one that is no id."""
    match = _ROLLOUT_IN_PATH.match(path)
    name = unquote(match[1]) if match else headers.get(ROLLOUT, "")
    return name if re.fullmatch(ROLLOUT_PATTERN, name) else None


class TraceLayer(Layer):
    """Continues the trace of a request's `traceparent`: a span for the request. In use while traces are on.

    Requests without it begin a trace where they ask for a completion; others, such as those of probes and pages, have
    no span.
    """

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, method = scope["path"], scope["method"]
        parent = Headers(scope=scope).get(tracing.TRACEPARENT)
        if parent is None and not (method == "POST" and "/v1/" in path):
            await self.app(scope, receive, send)
            return
        attributes = {"http.request.method": method, "url.path": path, "url.scheme": scope.get("scheme")}
        answer = _StatusSend(send)
        with tracing.span(method, attributes, kind="server", parent=parent) as span:
            try:
                await self.app(scope, receive, answer)
            finally:
                span.set({"http.response.status_code": answer.status or None})
                if answer.status >= 500:
                    span.fail(str(answer.status))
            if (token := token_of(scope)) is not None:
                span.set({"art.token": token.name, "enduser.id": token.owner})
            if (route := route_of(scope)) is not None:
                span.rename(f"{method} {route}")
                span.set({"http.route": route})


class StopHandler(Layer):
    """Answers 503 to requests whose task is cancelled, which uvicorn does when it has waited for them long enough.

    uvicorn itself would answer them with a text that no client understands.
    """

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = _StatusSend(send)
        try:
            await self.app(scope, receive, answer)
        except asyncio.CancelledError:
            if not answer.status:  # else the connection is closed in the middle of the answer, which clients notice
                raise stopping() from None


class RequestTimer(Layer):
    """Measures how long requests take.

    Args:
        app: The application behind it.
        count: Called with method, route, status and seconds of each. No status (0): the client left before there was
            one. No route (None): none has the path.
    """

    def __init__(self, app: ASGIApp, count: Callable[[str, str | None, int, float], None]) -> None:
        super().__init__(app)
        self._count = count

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        start, answer = time.perf_counter(), _StatusSend(send)
        try:
            await self.app(scope, receive, answer)
        finally:
            self._count(scope["method"], route_of(scope), answer.status, time.perf_counter() - start)


class TrainerRoutes(Layer):
    """Answers 421, at a server that only answers, to what the one that trains answers. Nothing of a body is read.

    It is not passed on: a load balancer can route it by its path.

    Args:
        app: The application behind it.
        trainer: URL of the server that trains.
    """

    def __init__(self, app: ASGIApp, trainer: str) -> None:
        super().__init__(app)
        self._trainer = trainer

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not answered_anywhere(scope["method"], scope["path"]):
            raise APIError(
                421,
                f"{scope['method']} {scope['path']:.200} is answered by the server that trains, and this one is a "
                f"gateway of it: ask {self._trainer}, or have the load balancer route the path there",
                code="not_the_trainer",
            )
        await self.app(scope, receive, send)


class RolloutPaths(Layer):
    """Takes the id of a rollout out of the path, so that a client needs nothing but a base URL: `/rollouts/{id}/v1/…`
    becomes `/v1/…` with the id in the header.

    OpenAI's clients get `/rollouts/{id}/v1` as their base URL, Anthropic's `/rollouts/{id}`. Every route of the gateway
    works under it. The id in the path counts, whatever the header says.
    """

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        if match := _BASE_URL.fullmatch(scope["path"]):
            rollout, path = match.groups()
            if re.fullmatch(ROLLOUT_PATTERN, rollout) is None:
                raise APIError(
                    400,
                    f"{rollout[:50]!r} cannot be the id of a rollout in an address: use 1 to 200 letters, digits, `.`, "
                    "`_`, `:`, `~` and `-`, the first one a letter or a digit",
                    code="invalid_rollout",
                    param="rollout",
                )
            headers = [(name, value) for name, value in scope["headers"] if name.lower() != _ROLLOUT_HEADER]
            # In place, so that the layers around this one see which route has answered.
            scope["path"], scope["raw_path"] = path, path.encode()
            scope["headers"] = [*headers, (_ROLLOUT_HEADER, rollout.encode())]
        await self.app(scope, receive, send)


class AuditLayer(Layer):
    """Adds a line to the audit log for each request to a route that has an action (scopes.py), however it ends.

    Args:
        app: The application behind it.
        requests: The log.
    """

    def __init__(self, app: ASGIApp, requests: RequestLog) -> None:
        super().__init__(app)
        self._requests = requests

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_logged = False

        async def log_first(message: Message) -> None:
            nonlocal is_logged
            if message["type"] == "http.response.start" and not is_logged:
                is_logged = True
                await self._log(scope, message["status"])
            await send(message)

        try:
            await self.app(scope, receive, log_first)
        except Exception:
            if not is_logged:
                is_logged = True
                await self._log(scope, 500)
            raise
        finally:
            if not is_logged:  # its client left
                await asyncio.shield(self._log(scope, None))

    async def _log(self, scope: Scope, status: int | None) -> None:
        rule = rule_of(scope)
        if rule is not None and rule.action is not None:
            await self._requests.add_request(scope, rule.action, status)


def route_of(scope: Scope) -> str | None:
    """The path of the route that a request was led to, with its parameters as names; None: it was led to none."""
    return getattr(scope.get("route"), "path", None)
