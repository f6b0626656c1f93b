"""Counts requests and completions as they end."""

from __future__ import annotations

import time
from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trainer_server.wire import Completion

_SECONDS = (0.005, 0.02, 0.1, 0.5, 1, 2, 5, 10, 30, 60, 180, 600)
"""Upper bounds of the buckets of durations: from a look-up to a long answer of a busy engine."""

_ROUTE = "metrics_route"
"""Key of a request's state."""

OTHER = "other"
"""Label of requests for which there is no route: their paths are anybody's, and each would be a series."""


class Counters:
    """Requests by route and status, and completions with their tokens by policy.

    Args:
        registry: Gets the series.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.requests = Histogram(
            "art_http_request_seconds",
            "Seconds from a request to the end of its answer.",
            ("method", "route", "status"),
            buckets=_SECONDS,
            registry=registry,
        )
        self.completions = Counter(
            "art_completions",
            "Completions in the ledger, by how they ended.",
            ("policy", "status"),
            registry=registry,
        )
        self.tokens = Counter(
            "art_tokens",
            "Tokens of completions: of their prompts, and sampled.",
            ("policy", "kind"),
            registry=registry,
        )

    def recorded(self, completions: Sequence[Completion]) -> None:
        """Counts completions that are in the ledger."""
        for completion in completions:
            policy = completion.policy or ""
            self.completions.labels(policy, completion.status.value).inc()
            self.tokens.labels(policy, "prompt").inc(len(completion.prompt_token_ids))
            self.tokens.labels(policy, "sampled").inc(len(completion.token_ids))


class Measured:
    """Measures how long requests take. Plain ASGI.

    Args:
        app: The application behind it.
        counters: Counts them.
    """

    def __init__(self, app: ASGIApp, counters: Counters) -> None:
        self.app = app
        self._counters = counters

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status = time.perf_counter(), 0  # 0: the client left before there was one

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        state = scope.setdefault("state", {})
        try:
            await self.app(scope, receive, noted)
        finally:
            route = state.get(_ROUTE, OTHER)
            self._counters.requests.labels(scope["method"], route, str(status)).observe(time.perf_counter() - began)


class NamedRoute:
    """Leaves the path of the route that answered, with its parameters as names, for `Measured`, which sees requests
    before their paths and tokens are looked at. Plain ASGI.

    Args:
        app: The application behind it.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self.app(scope, receive, send)
        finally:
            if scope["type"] == "http" and (path := getattr(scope.get("route"), "path", None)) is not None:
                scope.setdefault("state", {})[_ROUTE] = path
