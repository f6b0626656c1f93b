"""LangSmith's own client sends runs as traces, with their rewards as feedback, to a server that writes them down."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from art_langgraph.trackers.langsmith import LangSmithTracker
from art_langgraph.trackers.spans import spans
from tests.support.patience import PATIENCE
from tests.support.runs.trackers import a_run, a_run_with, tracked
from tests.support.tracing.recording_server import Recorded, recording
from trainer_server.tracking import Tracking
from trainer_server.wire import ConfigError

MARK, FUNCTION = "secret-4711", "tests.support.homes.redactions:digits"
INFO = {
    "version": "0.12.0",
    "batch_ingest_config": {
        "use_multipart_endpoint": True,
        "scale_up_qsize_trigger": 1000,
        "scale_up_nthreads_limit": 16,
        "scale_down_nempty_trigger": 4,
        "size_limit": 100,
        "size_limit_bytes": 20_971_520,
    },
}
PROJECT = {
    "id": "0d5b0a52-7a44-4e5c-9d4e-1f6f3c3c8f10",
    "tenant_id": "0d5b0a52-7a44-4e5c-9d4e-1f6f3c3c8f11",
    "name": "cities",
    "start_time": "2026-01-01T00:00:00Z",
    "reference_dataset_id": None,
}


@pytest.fixture
def langsmith(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorded]:
    with recording({"/info": INFO, "/sessions": PROJECT}) as server:
        monkeypatch.setenv("LANGSMITH_ENDPOINT", server.url)
        monkeypatch.setenv("LANGSMITH_API_KEY", "key")
        monkeypatch.setenv("LANGSMITH_PROJECT", "cities")
        yield server


def parts(server: Recorded) -> dict[str, Any]:
    return {name: value for sent in server.to("/runs/multipart") for name, value in sent.parts().items()}


def test_a_run_is_a_trace_with_feedback(langsmith: Recorded, tmp_path: Path) -> None:
    said: list[str] = []
    tracking = Tracking([("langsmith", LangSmithTracker())], said.append)
    tracking.start(tracked(tmp_path))
    tracking.log(4, {"reward": 0.5}, [a_run()])
    tracking.finish(None, PATIENCE)
    assert said == []
    tree, sent = spans(a_run()), parts(langsmith)
    for span in tree:
        posted = sent[f"post.{span.id}"]
        assert posted["session_name"] == "cities"
        assert posted["trace_id"] == str(tree[0].id)
        assert posted.get("parent_run_id") == (span.parent and str(span.parent))
        assert posted["dotted_order"].rpartition("Z")[2] == str(span.id)
    assert [sent[f"post.{span.id}"]["run_type"] for span in tree] == ["chain", "chain", "chain", "llm", "llm", "tool"]
    policy, tool = (str(tree[number].id) for number in (3, 5))
    assert sent[f"post.{policy}.inputs"]["messages"][0]["content"] == "Weather in Oslo?"
    assert sent[f"post.{policy}.outputs"]["messages"][0]["content"] == "Rain."
    assert sent[f"post.{policy}.extra"]["metadata"]["training_step"] == 4
    assert sent[f"post.{tool}.error"] == "no such city" if f"post.{tool}.error" in sent else True
    feedback = {value["key"]: value for name, value in sent.items() if name.startswith("feedback.")}
    assert {key: value["score"] for key, value in feedback.items()} == {"reward": 0.5, "short": 1.0}
    assert feedback["reward"]["comment"] == "short and right"
    assert feedback["reward"]["run_id"] == str(tree[0].id)
    assert feedback["reward"]["session_id"] == PROJECT["id"]


def test_what_the_clients_threads_meet_is_said(langsmith: Recorded, tmp_path: Path) -> None:
    langsmith.status = 401
    said: list[str] = []
    tracking = Tracking([("langsmith", LangSmithTracker())], said.append)
    tracking.start(tracked(tmp_path))
    tracking.log(1, {}, [a_run()])
    tracking.finish(None, PATIENCE)
    assert "'langsmith' failed" in said[0]
    assert "Check LANGSMITH_API_KEY" in said[0]


def test_a_missing_key_is_said_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LANGSMITH_API_KEY", raising=False)
    monkeypatch.delenv("LANGCHAIN_API_KEY", raising=False)
    with pytest.raises(ConfigError, match="set LANGSMITH_API_KEY"):
        LangSmithTracker()


def test_texts_are_redacted(langsmith: Recorded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ART_REDACT", FUNCTION)
    tracking = Tracking([("langsmith", LangSmithTracker())], pytest.fail)
    tracking.start(tracked(tmp_path))
    tracking.log(4, {}, [a_run_with(MARK)])
    tracking.finish(None, PATIENCE)
    sent = str(parts(langsmith))
    assert "secret-####" in sent
    assert MARK not in sent
