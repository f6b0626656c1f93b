"""The state of the server as series, read when Prometheus asks: engines, the line, policies, jobs, the last steps."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from trainer_server.server.server import Server
from trainer_server.wire import Job, JobStatus

JOBS = 200
"""The newest jobs that are looked at."""

_NAME = re.compile(r"[^a-zA-Z0-9_]")


class State(Collector):
    """Looks the server up.

    Args:
        server: The server.
    """

    def __init__(self, server: Server) -> None:
        self._server = server

    def collect(self) -> Iterable[Metric]:
        yield from self._engines()
        yield _gauge("art_ready", "Whether completions can be answered.", self._server.ready)
        yield _gauge("art_trainer_running", "Whether the trainer runs.", self._server.jobs.process.running)
        line = self._server.admission
        yield _gauge("art_chats_under_way", "Chats at engines and in line.", line.under_way)
        yield _gauge("art_chats_refused", "Chats that were refused as the line was full.", line.refusal_count)
        if (gpus := self._server.gpus) is not None:
            yield _gauge("art_gpus", "GPUs that are paid for.", gpus)
        if (price := self._server.config.gpu_hour_price) is not None:
            yield _gauge("art_gpu_hour_price_usd", "Price of an hour of one GPU in USD.", price)
        yield from self._policies()
        yield from self._jobs()

    def describe(self) -> Iterable[Metric]:
        return ()  # else the registry collects once while the server is made

    def _engines(self) -> Iterable[Metric]:
        up = GaugeMetricFamily("art_engine_up", "Whether an engine answers.", labels=["engine"])
        busy = GaugeMetricFamily("art_engine_requests", "Requests that an engine works on.", labels=["engine"])
        restarts = GaugeMetricFamily("art_engine_restarts", "Restarts since the server's start.", labels=["engine"])
        for number, engine in enumerate(self._server.engines):
            facts, label = engine.describe(), [str(number)]
            up.add_metric(label, float(bool(facts.get("ready"))))
            busy.add_metric(label, float(facts.get("requests") or 0))
            restarts.add_metric(label, float(facts.get("restarts") or 0))
        yield from (up, busy, restarts)

    def _policies(self) -> Iterable[Metric]:
        newest = GaugeMetricFamily("art_policy_newest_version", "Newest version of a policy.", labels=["policy"])
        current = GaugeMetricFamily("art_policy_version", "Version that a policy's name means.", labels=["policy"])
        for name in self._server.store.names():
            for family, version in (
                (newest, self._server.store.newest(name)),
                (current, self._server.names.resolve(name)),
            ):
                if version is not None:
                    family.add_metric([name], version)
        yield from (newest, current)

    def _jobs(self) -> Iterable[Metric]:
        jobs = self._server.jobs.newest(JOBS)
        counts = GaugeMetricFamily("art_jobs", f"Of the {JOBS} newest jobs, by status.", labels=["kind", "status"])
        for (kind, status), count in Counter((job.kind, job.status) for job in jobs).items():
            counts.add_metric([kind, status.value], count)
        yield counts
        last = GaugeMetricFamily(
            "art_last_job",
            "Metrics of the last job of a policy and kind that succeeded.",
            labels=["policy", "kind", "metric"],
        )
        took = GaugeMetricFamily("art_last_job_seconds", "Seconds of its phases.", labels=["policy", "kind", "phase"])
        for job in _last(jobs):
            assert job.result is not None
            for name, value in job.result.metrics.items():
                if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
                    last.add_metric([job.policy, job.kind, _NAME.sub("_", name)], float(value))
            for phase, seconds in job.seconds.items():
                took.add_metric([job.policy, job.kind, phase], seconds)
        yield from (last, took)


def _last(jobs: Iterable[Job]) -> list[Job]:
    """Of jobs, newest first, the last of each policy and kind that has a result."""
    last: dict[tuple[str, str], Job] = {}
    for job in jobs:
        if job.status is JobStatus.succeeded and job.result is not None:
            last.setdefault((job.policy, job.kind), job)
    return list(last.values())


def _gauge(name: str, help: str, value: float) -> Metric:
    return GaugeMetricFamily(name, help, value=float(value))
