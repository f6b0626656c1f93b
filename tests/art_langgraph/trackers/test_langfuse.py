"""What Langfuse is sent of a run. Its own client is in `test_real_trackers`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from art_langgraph.trackers.langfuse import LangfuseTracker
from art_langgraph.trackers.spans import Span
from tests.support.runs.trackers import a_run_with, tracked

MARK, FUNCTION = "secret-4711", "tests.support.homes.redactions:digits"


class _Recording:
    """In place of Langfuse's clients: keeps what it is given."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.scores = self

    def spans(self, tree: Sequence[Span], common: Mapping[str, Any]) -> Sequence[Any]:
        return [*tree, common]

    def export(self, made: list[Any]) -> SimpleNamespace:
        self.sent += made
        return SimpleNamespace(name="SUCCESS")

    def create(self, *, request: list[Any]) -> SimpleNamespace:
        self.sent += request
        return SimpleNamespace(rejected=0)


def test_texts_are_redacted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ART_REDACT", FUNCTION)
    tracker, recording = object.__new__(LangfuseTracker), _Recording()
    tracker._otel = tracker._client = tracker._exporter = recording  # type: ignore[assignment]
    tracker._run = tracked(tmp_path)
    tracker.trajectories(4, [a_run_with(MARK)])
    sent = str(recording.sent)
    assert "secret-####" in sent
    assert "'comment': 'secret-####'" in sent
    assert MARK not in sent
