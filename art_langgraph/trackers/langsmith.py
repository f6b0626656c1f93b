"""LangSmith: a trace for each run, with its rewards as feedback."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from art_langgraph.redaction import redact
from art_langgraph.trackers.spans import Span, scores, span_id, spans
from art_langgraph.trajectory import Trajectory
from trainer_server.tracking import TrackedRun, import_library
from trainer_server.wire import ARTError, ConfigError

_KINDS = {"run": "chain", "node": "chain", "model": "llm", "tool": "tool"}


class LangSmithTracker:
    """Sends the runs of each step to LangSmith: nodes, model calls and tool calls, and feedback `reward`.

    LangSmith's own environment variables count: LANGSMITH_API_KEY, LANGSMITH_ENDPOINT, LANGSMITH_PROJECT (default
    `art-langgraph`). A run has the same ids each time, so that none is there twice. Numbers of steps are not sent.
    """

    remedy = "Check LANGSMITH_API_KEY, LANGSMITH_ENDPOINT and the network"

    def __init__(self) -> None:
        self._library = import_library("langsmith", "langsmith", "langsmith")
        if not (os.environ.get("LANGSMITH_API_KEY") or os.environ.get("LANGCHAIN_API_KEY")):
            raise ConfigError("the tracker 'langsmith' needs a key: set LANGSMITH_API_KEY in the environment")
        self._client: Any = None
        self._project: Any = None
        self._run: TrackedRun | None = None
        self._errors: list[Exception] = []

    def start(self, run: TrackedRun) -> None:
        self._run = run
        # The client sends in threads of its own: what they meet is raised at the next call, so that it is counted.
        self._client = self._library.Client(tracing_error_callback=self._errors.append)
        project = os.environ.get("LANGSMITH_PROJECT") or os.environ.get("LANGCHAIN_PROJECT") or "art-langgraph"
        self._project = self._client.create_project(project, upsert=True)  # feedback needs its id

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Steps have no traces."""

    def trajectories(self, step: int, runs: Sequence[Trajectory]) -> None:
        for run in runs:
            self._send(step, run)
        self._client.flush()
        self._raise()

    def finish(self, error: str | None) -> None:
        self._client.flush()
        self._client.close(timeout=5)
        self._raise()

    def _send(self, step: int, run: Trajectory) -> None:
        assert self._run is not None
        run = redact(run)
        tree = spans(run)
        orders: dict[Any, str] = {}
        for span in tree:
            own = f"{_time(span.start_time):%Y%m%dT%H%M%S%f}Z{span.id}"
            orders[span.id] = own if span.parent is None else f"{orders[span.parent]}.{own}"
            metadata = {"training": self._run.name, "policy": self._run.policy, "training_step": step, **span.facts}
            self._client.create_run(
                span.name,
                _dict(span.input, "input"),
                _KINDS[span.kind],
                id=span.id,
                trace_id=tree[0].id,
                parent_run_id=span.parent,
                dotted_order=orders[span.id],
                project_name=self._project.name,
                start_time=_time(span.start_time),
                end_time=_time(span.start_time + span.seconds),
                outputs=_outputs(span),
                error=span.error,
                tags=["evaluation" if run.evaluation else "training"],
                extra={"metadata": metadata},
            )
        for name, value in scores(run).items():
            self._client.create_feedback(
                tree[0].id,
                name,
                score=value,
                trace_id=tree[0].id,
                session_id=self._project.id,
                start_time=_time(run.started),
                feedback_id=span_id(run.id, "score", name),
                comment=run.reward_reason if name == "reward" else None,
            )

    def _raise(self) -> None:
        """Raises the errors of the client's threads since the last call."""
        if self._errors:
            errors, self._errors[:] = list(self._errors), []
            raise ARTError(f"LangSmith did not take {len(errors)} requests, the first: {errors[0]}")


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _dict(value: Any, name: str) -> dict[str, Any]:
    return value if isinstance(value, dict) else {} if value is None else {name: value}


def _outputs(span: Span) -> dict[str, Any] | None:
    if span.output is None:
        return None
    return {"messages": [span.output]} if span.kind == "model" else _dict(span.output, "output")
