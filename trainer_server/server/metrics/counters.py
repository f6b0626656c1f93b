"""Counts requests, completions and jobs as they end, and how fast completions come."""

from __future__ import annotations

import collections
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Histogram

from trainer_server.wire import Completion, CompletionStatus, Job

SPAN = 60
"""Seconds for which completions are counted by the second."""

_SECONDS = (0.005, 0.02, 0.1, 0.5, 1, 2, 5, 10, 30, 60, 180, 600)
"""Upper bounds of the buckets of durations: from a look-up to a long answer of a busy engine."""

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

    def count_request(self, method: str, route: str | None, status: int, seconds: float) -> None:
        """Counts a request that was answered.

        Args:
            method: Of the request.
            route: The path of its route, with its parameters as names; None: there is none.
            status: Of the answer; 0: the client left before there was one.
            seconds: From the request to the end of its answer.
        """
        labels = method if method in _METHODS else OTHER, route or OTHER, str(status)
        self.requests.labels(*labels).observe(seconds)

    def count_job(self, job: Job) -> None:
        """Counts the seconds of a job that has ended."""
        for phase, seconds in job.seconds.items():
            self.job_seconds.labels(job.policy, job.kind, phase).inc(seconds)

    def count_completions(self, completions: Sequence[Completion]) -> None:
        """Counts completions that are in the ledger."""
        for completion in completions:
            sizes = len(completion.prompt_token_ids), len(completion.token_ids)
            self.count_completion(completion.policy, completion.status, *sizes)

    def count_completion(self, policy: str | None, status: CompletionStatus, prompt: int, sample: int) -> None:
        """Counts one completion that is in the ledger.

        Args:
            policy: Who answered; None: the base model.
            status: How it ended.
            prompt: Tokens of its prompt.
            sample: Sampled tokens.
        """
        label = policy or ""
        self.completions.labels(label, status.value).inc()
        self.tokens.labels(label, "prompt").inc(prompt)
        self.tokens.labels(label, "sampled").inc(sample)
        self.rates.add(policy, prompt, sample)


@dataclass(frozen=True, slots=True)
class Rate:
    """What a policy answered, per second."""

    completions: float = 0.0
    prompt: float = 0.0
    """Tokens of prompts."""
    sampled_tokens: float = 0.0
    """Sampled tokens."""


class Rates:
    """Counts by the second, for a minute. Any thread may call it.

    Args:
        clock: Gives the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._began = clock, clock()
        self._lock = threading.Lock()
        self._seconds: deque[tuple[int, defaultdict[str | None, list[int]]]] = deque()
        """(second, by policy: completions, tokens of prompts, sampled tokens), oldest first."""
        self.completions: collections.Counter[str | None] = collections.Counter()
        """Completions by policy, since the start of the server."""

    def add(self, policy: str | None, prompt: int, sampled_tokens: int) -> None:
        """Counts a completion.

        Args:
            policy: Who answered; None: the base model.
            prompt: Tokens of the prompt.
            sampled_tokens: Sampled tokens.
        """
        with self._lock:
            self.completions[policy] += 1
            now = int(self._clock())
            if not self._seconds or self._seconds[-1][0] != now:
                self._seconds.append((now, defaultdict(lambda: [0, 0, 0])))
                self._forget(now)
            counts = self._seconds[-1][1][policy]
            for index, value in enumerate((1, prompt, sampled_tokens)):
                counts[index] += value

    def of(self, seconds: int = SPAN) -> dict[str | None, Rate]:
        """The rates of all policies that answered in the last seconds, SPAN at most. Of a server that was started less
        long ago, since its start."""
        with self._lock:
            now = self._clock()
            self._forget(int(now))
            sums: defaultdict[str | None, list[int]] = defaultdict(lambda: [0, 0, 0])
            for second, counts in self._seconds:
                if second > now - seconds:
                    for policy, values in counts.items():
                        sums[policy] = [total + value for total, value in zip(sums[policy], values, strict=True)]
            span = max(1.0, min(float(seconds), now - self._began))
        return {policy: Rate(*(value / span for value in values)) for policy, values in sums.items()}

    def _forget(self, now: int) -> None:
        while self._seconds and self._seconds[0][0] <= now - SPAN:
            self._seconds.popleft()
