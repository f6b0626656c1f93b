"""A span for each request that belongs to a trace, or that asks for a completion. In use while traces are on."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import Message, Receive, Scope, Send

from trainer_server.common import tracing
from trainer_server.server.access.layer import Layer
from trainer_server.server.access.scopes import token_of
from trainer_server.server.metrics.counters import ROUTE


class TraceLayer(Layer):
    """Continues the trace of a request's `traceparent`.

    Requests without it begin a trace where they ask for a completion; others, such as those of probes and pages, have
    no span.

    Args:
        app: The application behind it.
    """

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, method = scope["path"], scope["method"]
        parent = Headers(scope=scope).get(tracing.TRACEPARENT)
        if parent is None and not (method == "POST" and "/v1/" in path):
            await self.app(scope, receive, send)
            return
        about = {"http.request.method": method, "url.path": path, "url.scheme": scope.get("scheme")}
        with tracing.span(method, about, kind="server", parent=parent) as span:

            async def pass_on(message: Message) -> None:
                if message["type"] == "http.response.start":
                    span.set({"http.response.status_code": message["status"]})
                    if message["status"] >= 500:
                        span.fail(str(message["status"]))
                await send(message)

            await self.app(scope, receive, pass_on)
            if (token := token_of(scope)) is not None:
                span.set({"art.token": token.name, "enduser.id": token.owner})
            if (route := scope.get("state", {}).get(ROUTE)) is not None:
                span.rename(f"{method} {route}")
                span.set({"http.route": route})
