"""Langfuse: a trace for each run, with its rewards as scores."""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from art_langgraph.redaction import redact
from art_langgraph.trackers.spans import Span, scores, span_id, spans
from art_langgraph.trajectory import Trajectory
from trainer_server.common.jsonl import to_json
from trainer_server.tracking import TrackedRun, import_library
from trainer_server.wire import ARTError, ConfigError

_KINDS = {"run": "agent", "node": "chain", "model": "generation", "tool": "tool"}
_KEYS = ("LANGFUSE_PUBLIC_KEY", "LANGFUSE_SECRET_KEY")
_CLOUD = "https://cloud.langfuse.com"
_LENGTH = 200
"""Characters of a trace's name that Langfuse takes."""
_SPANS, _SCORES = 200, 100
"""How many are sent in one request. A run is never divided."""
_TIMEOUT = 30.0


class LangfuseTracker:
    """Sends the runs of each step to Langfuse: nodes, model calls and tool calls, and the score `reward`.

    Langfuse's own environment variables count: LANGFUSE_PUBLIC_KEY, LANGFUSE_SECRET_KEY, LANGFUSE_BASE_URL. All runs of
    a training are in one session. A run has the same ids each time, so that none is there twice. Numbers of steps are
    not sent.
    """

    remedy = "Check LANGFUSE_PUBLIC_KEY, LANGFUSE_SECRET_KEY, LANGFUSE_BASE_URL and the network"

    def __init__(self) -> None:
        # Not `Langfuse`: it is one object for each key in a process, and an agent that is traced by it has its own.
        self._api = import_library("langfuse.api", "langfuse", "langfuse")
        self._exporters = import_library(
            "opentelemetry.exporter.otlp.proto.http.trace_exporter", "langfuse", "langfuse"
        )
        self._otel = _OpenTelemetry()
        if missing := [name for name in _KEYS if not os.environ.get(name)]:
            raise ConfigError(f"the tracker 'langfuse' needs keys: set {' and '.join(missing)} in the environment")
        self._client: Any = None
        self._exporter: Any = None
        self._run: TrackedRun | None = None

    def start(self, run: TrackedRun) -> None:
        public, secret = (os.environ[name] for name in _KEYS)
        url = (os.environ.get("LANGFUSE_BASE_URL") or os.environ.get("LANGFUSE_HOST") or _CLOUD).rstrip("/")
        self._client = self._api.LangfuseAPI(
            base_url=url, username=public, password=secret, x_langfuse_public_key=public, timeout=_TIMEOUT
        )
        self._exporter = self._exporters.OTLPSpanExporter(
            endpoint=f"{url}/api/public/otel/v1/traces",
            headers={
                "Authorization": "Basic " + base64.b64encode(f"{public}:{secret}".encode()).decode(),
                "x-langfuse-public-key": public,
                "x-langfuse-ingestion-version": "4",
            },
            timeout=_TIMEOUT,
        )
        if not self._client.projects.get().data:
            raise ARTError("these keys belong to no project of Langfuse")
        self._run = run

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Steps have no traces."""

    def trajectories(self, step: int, runs: Sequence[Trajectory]) -> None:
        batch: list[Any] = []
        all_scores: list[dict[str, Any]] = []
        for run in map(redact, runs):
            batch += self._otel.spans(spans(run), self._common(step, run))
            all_scores += _scores(run)
            if len(batch) >= _SPANS:
                self._export(batch)
                batch = []
        self._export(batch)
        for first in range(0, len(all_scores), _SCORES):
            answer = self._client.scores.create(request=all_scores[first : first + _SCORES])
            if rejections := getattr(answer, "rejected", 0):
                raise ARTError(f"Langfuse rejected {rejections} scores: {answer.errors[0].message}")

    def finish(self, error: str | None) -> None:
        self._exporter.shutdown()

    def _export(self, batch: list[Any]) -> None:
        if batch and self._exporter.export(batch).name != "SUCCESS":  # the exporter has logged why
            raise ARTError(f"Langfuse did not take {len(batch)} spans")

    def _common(self, step: int, run: Trajectory) -> dict[str, Any]:
        """What all spans of a run have."""
        assert self._run is not None
        return {
            "session.id": f"{self._run.name[:100]} ({self._run.id})",
            "langfuse.trace.name": f"{self._run.policy}: {run.graph_id or 'agent'}"[:_LENGTH],
            "langfuse.trace.tags": [self._run.policy, "evaluation" if run.evaluation else "training"],
            "langfuse.trace.metadata.training": self._run.name,
            "langfuse.trace.metadata.step": step,
        }


class _OpenTelemetry:
    """Makes finished spans of OpenTelemetry, without a tracer: a run has the same ids whenever it is sent, and the
    spans of the user's program stay out."""

    def __init__(self) -> None:
        self._sdk, self._trace, resources, instrumentation = (
            import_library(f"opentelemetry.{name}", "langfuse", "langfuse")
            for name in ("sdk.trace", "trace", "sdk.resources", "sdk.util.instrumentation")
        )
        self._resource = resources.Resource.create()
        self._scope = instrumentation.InstrumentationScope("art-langgraph")

    def spans(self, tree: Sequence[Span], common: Mapping[str, Any]) -> list[Any]:
        """Spans of OpenTelemetry.

        Args:
            tree: The spans of a run, each after the one around it.
            common: Attributes that all of them get.
        """
        contexts = {span.id: self._context(tree[0].id.int, span.id.int) for span in tree}
        return [
            self._sdk.ReadableSpan(
                span.name,
                context=contexts[span.id],
                parent=None if span.parent is None else contexts[span.parent],
                resource=self._resource,
                attributes={**common, **_attributes(span)},
                status=self._status(span.error),
                start_time=int(span.start_time * 1e9),
                end_time=int((span.start_time + span.seconds) * 1e9),
                instrumentation_scope=self._scope,
            )
            for span in tree
        ]

    def _context(self, trace: int, span: int) -> Any:
        flags = self._trace.TraceFlags(self._trace.TraceFlags.SAMPLED)
        return self._trace.SpanContext(trace, span & (2**64 - 1) or 1, is_remote=False, trace_flags=flags)

    def _status(self, error: str | None) -> Any:
        code = self._trace.StatusCode.UNSET if error is None else self._trace.StatusCode.ERROR
        return self._trace.Status(code, error)


def _attributes(span: Span) -> dict[str, Any]:
    """A span in the words of Langfuse's mapping of OpenTelemetry."""
    values: dict[str, Any] = {"langfuse.observation.type": _KINDS[span.kind]}
    if span.input is not None:
        values["langfuse.observation.input"] = to_json(span.input)
    if span.output is not None:
        values["langfuse.observation.output"] = to_json(span.output)
    if span.error is not None:
        values |= {"langfuse.observation.level": "ERROR", "langfuse.observation.status_message": span.error}
    if span.kind == "model":
        values["langfuse.observation.model.name"] = span.name
    for name, fact in span.facts.items():
        if fact is not None:
            simple = isinstance(fact, str | bool | int | float)
            values[f"langfuse.observation.metadata.{name}"] = fact if simple else to_json(fact)
    return values


def _scores(run: Trajectory) -> list[dict[str, Any]]:
    """The scores of a run, as Langfuse's API takes them. One that is sent again takes the place of the first."""
    return [
        {
            "id": str(span_id(run.id, "score", name)),
            "traceId": span_id(run.id).hex,
            "name": name,
            "value": value,
            "dataType": "NUMERIC",
            "timestamp": datetime.fromtimestamp(run.started + run.seconds, UTC).isoformat(),
            **({"comment": run.reward_reason} if name == "reward" and run.reward_reason else {}),
        }
        for name, value in scores(run).items()
    ]
