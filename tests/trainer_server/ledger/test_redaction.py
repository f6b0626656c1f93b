"""Texts under `serve --redact`: what is stored of them, and what is not changed."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.homes.files import files_with
from tests.support.homes.jobs import ask
from tests.support.homes.ledger_rows import row
from tests.support.servers.trainer_server import TrainerServer
from trainer_server.ledger.redaction import Redaction
from trainer_server.ledger.rollouts import RolloutRepository
from trainer_server.ledger.run_repository import RunRepository
from trainer_server.ledger.sqlite import SQLiteBooks
from trainer_server.wire import ConfigError, Reward, RolloutSpec, RunTrace

MARK = "secret-4711"
DIGITS = "tests.support.homes.redactions:digits"


@pytest.fixture
def http(server: TrainerServer, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The server as if it had been started with --redact."""
    inner = server.app.state.server
    redaction = Redaction(DIGITS)
    for part in (inner.recorder, inner.rollouts, inner.runs, inner.imported_completions):
        monkeypatch.setattr(part, "_redaction", redaction)
    with server.http() as http:
        yield http


def test_texts_are_redacted_before_they_are_written_and_tokens_stay(server: TrainerServer, http: httpx.Client) -> None:
    scenario = {"id": "s", "input": MARK, "metadata": {"note": MARK}}
    spec = {"scenario": scenario, "metadata": {"user": MARK}, "hints": {"agent": "hint 1"}}
    assert http.put("/api/rollouts/ro-red", json=spec).status_code == 200
    completion = ask(http, f"say {MARK}", "agent@0", "ro-red")
    http.post("/api/rollouts/ro-red/reward", json={"reward": 1.0, "reason": MARK})
    call = {"id": completion, "model": "agent", "version": 0, "started": 1.0, "message": {"content": MARK}}
    trace = {"id": "tr", "scenario": scenario, "started": 1.0, "output": [MARK], "error": MARK, "completions": [call]}
    assert http.put("/api/rollouts/ro-red/trace", json=trace).status_code == 204
    http.get("/ui/runs")
    record = http.get(f"/api/completions/{completion}").json()
    assert record["request"]["messages"][-1]["content"] == "say secret-####"
    assert record["message"]["content"] == "secret-####"
    assert record["token_ids"] == [ord(char) for char in MARK], "tokens are what training needs"
    shown = http.get("/api/rollouts/ro-red").json()
    assert shown["reward_reason"] == "secret-####"
    assert shown["scenario"]["input"] == "secret-####"
    found = files_with(server.home.root, MARK)
    assert {name.split("-")[0] for name in found} == {"ledger.sqlite"}, "as tokens"
    assert files_with(server.home.root, MARK, tokens=False) == []


def test_a_function_that_fails_lets_no_text_through(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    message = {"role": "assistant", "content": MARK}
    for name, why in (("failing", "raised ValueError"), ("nothing", "returned NoneType")):
        redaction = Redaction(f"tests.support.homes.redactions:{name}")
        with caplog.at_level(logging.ERROR):
            for _ in range(2):
                changed = redaction.completion(row("c").model_copy(update={"message": message}))
        assert changed.message == {"role": "assistant", "content": "[not stored: redaction failed]"}
        assert caplog.text.count(why) == 1
    assert MARK not in caplog.text
    books = SQLiteBooks(tmp_path / "r.sqlite")
    book = RolloutRepository(books, redaction)
    book.register("ro", RolloutSpec(metadata={"a": MARK}))
    book.reward("ro", Reward(reward=1.0, reason=MARK), [])
    scenario: Any = {"id": "s", "input": MARK}
    RunRepository(books, redaction).trace("ro", RunTrace(id="t", scenario=scenario, started=1.0), MARK)
    assert files_with(tmp_path, MARK) == []


def test_a_function_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigError, match="--redact no_such_module:function: no_such_module cannot be imported"):
        Redaction("no_such_module:function")
    with pytest.raises(ConfigError, match="--redact mask: name it as module:function"):
        Redaction("mask")
