"""What this process stores and reports under `ART_REDACT`."""

from __future__ import annotations

from pathlib import Path

import pytest

from art_langgraph import TrajectoryStore
from art_langgraph.background.reports import trace_of
from art_langgraph.redaction import redact
from tests.support.homes.files import files_with
from tests.support.runs.groups import run
from trainer_server.common.jsonl import to_json
from trainer_server.wire import ConfigError

MARK = "secret-4711"
FUNCTION = "tests.support.homes.redactions:digits"


def test_the_store_has_no_text_that_the_function_takes_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = TrajectoryStore(tmp_path / "store.sqlite")
    stored = run(
        {"question": MARK},
        1.0,
        calls=[("look_up_7", MARK)],
        output={"messages": [MARK]},
        error=MARK,
        reward_reason=MARK,
    )
    before = stored.model_copy(deep=True)
    monkeypatch.setenv("ART_REDACT", FUNCTION)
    store.add(stored)
    store.score(stored.id, 0.5, error=MARK)
    assert stored == before, "the run in memory is as it was"
    assert files_with(tmp_path, MARK) == []
    read = store.get(stored.id)
    assert read is not None
    assert read.scenario.input == {"question": "secret-####"}
    assert (read.error, read.reward_error, read.reward) == ("secret-####", "secret-####", 0.5)
    told = read.completions[1].messages
    assert told[-1]["content"] == "secret-####"
    assert told[-1]["tool_call_id"] == "call-0", "ids stay"
    assert told[-2]["tool_calls"][0]["function"]["name"] == "look_up_7", "names of tools stay"
    assert MARK not in to_json(trace_of(redact(before)))
    assert (read.id, read.scenario.id, read.rollout_id) == (before.id, before.scenario.id, before.rollout_id)


def test_a_function_that_does_not_exist_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ART_REDACT", "tests.support.homes.redactions:none")
    with pytest.raises(ConfigError, match=r"ART_REDACT tests.support.homes.redactions:none: .* has no function 'none'"):
        redact(run("a", 1.0))
