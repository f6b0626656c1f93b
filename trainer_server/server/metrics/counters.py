"""Counts requests and completions as they end."""

from __future__ import annotations

import time
from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trainer_server.server.access.layer import Layer
from trainer_server.server.metrics.rates import Rates
from trainer_server.wire import Completion, Job

_SECONDS = (0.005, 0.02, 0.1, 0.5, 1, 2, 5, 10, 30, 60, 180, 600)
"""Upper bounds of the buckets of durations: from a look-up to a long answer of a busy engine."""

ROUTE = "metrics_route"
"""Key of a request's state: the path of the route that answered, with its parameters as names."""

OTHER = "other"
"""Label of requests for which there is no route: their paths are anybody's, and each would be a series. So is it of
methods that no route has."""
_METHODS = {"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"}


class Counters:
    """Requests by route and status, and completions with their tokens by policy.

    Args:
        registry: Gets the series.

    Attributes:
        rates: What was counted in the last minute.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.rates = Rates()
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

        self.job_seconds = Counter(
            "art_job_seconds",
            "Seconds of jobs that have ended, by phase.",
            ("policy", "kind", "phase"),
            registry=registry,
        )

    def count_job(self, job: Job) -> None:
        """Counts the seconds of a job that has ended."""
        for phase, seconds in job.seconds.items():
            self.job_seconds.labels(job.policy, job.kind, phase).inc(seconds)

    def count_completions(self, completions: Sequence[Completion]) -> None:
        """Counts completions that are in the ledger."""
        for completion in completions:
            policy = completion.policy or ""
            self.completions.labels(policy, completion.status.value).inc()
            self.tokens.labels(policy, "prompt").inc(len(completion.prompt_token_ids))
            self.tokens.labels(policy, "sampled").inc(len(completion.token_ids))
            self.rates.add(completion.policy, len(completion.prompt_token_ids), len(completion.token_ids))


class RequestTimer(Layer):
    """Measures how long requests take.

    Args:
        app: The application behind it.
        counters: Counts them.
    """

    def __init__(self, app: ASGIApp, counters: Counters) -> None:
        super().__init__(app)
        self._counters = counters

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        began, status = time.perf_counter(), 0  # 0: the client left before there was one

        async def pass_on(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        state = scope.setdefault("state", {})
        try:
            await self.app(scope, receive, pass_on)
        finally:
            route, method = state.get(ROUTE, OTHER), scope["method"] if scope["method"] in _METHODS else OTHER
            self._counters.requests.labels(method, route, str(status)).observe(time.perf_counter() - began)


class NamedRoute(Layer):
    """Leaves the path of the route that answered, with its parameters as names, for `RequestTimer`, which sees requests
    before their paths and tokens are looked at."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self.app(scope, receive, send)
        finally:
            if (path := getattr(scope.get("route"), "path", None)) is not None:
                scope.setdefault("state", {})[ROUTE] = path
