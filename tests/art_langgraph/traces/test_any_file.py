"""Whatever is in a file that is imported: its runs are there once, and what is none is counted."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from art_langgraph import TrajectoryStore
from art_langgraph.client.demonstrations import load_conversations
from art_langgraph.datasets import load_scenarios
from art_langgraph.exports.ledger_rows import run_and_rows
from art_langgraph.traces import import_runs
from tests.support.fuzzing import json_values, outcome, spoiled, thorough
from tests.support.runs.foreign_runs import ANSWER, ASKED, CALLS, CONVERSATION, RAIN, WEATHER, span, traces
from trainer_server.common.jsonl import read_jsonl
from trainer_server.wire import ConfigError

LANGSMITH = [
    {
        "id": "b0e3a1c2-0000-4000-8000-000000000001",
        "trace_id": "b0e3a1c2-0000-4000-8000-000000000001",
        "name": "ChatOpenAI",
        "run_type": "llm",
        "start_time": "2026-03-01T12:00:00+00:00",
        "end_time": "2026-03-01T12:00:02+00:00",
        "inputs": {"messages": ASKED, "tools": [WEATHER]},
        "outputs": {"choices": [{"message": CALLS}]},
        "extra": {"metadata": {"ls_model_name": "m"}},
        "feedback_stats": {"good": {"n": 1, "avg": 1.0}},
    }
]
LANGFUSE = [
    {
        "id": "o-1",
        "trace_id": "t1",
        "type": "GENERATION",
        "start_time": "2026-03-01 12:00:00.000000",
        "end_time": None,
        "input": json.dumps([*ASKED, CALLS, RAIN]),
        "output": json.dumps(ANSWER),
    },
    {"id": "s-1", "trace_id": "t1", "name": "good", "value": 1.0, "data_type": "NUMERIC"},
]
PARTS = [{"role": one["role"], "parts": [{"type": "text", "content": one["content"]}]} for one in (*ASKED, ANSWER)]
OTEL = [
    traces(
        span(
            "1",
            {
                "gen_ai.operation.name": "chat",
                "gen_ai.request.model": "m",
                "gen_ai.input.messages": json.dumps(PARTS[:2]),
                "gen_ai.output.messages": json.dumps(PARTS[2:]),
            },
        )
    )
]
OPENAI = [{"messages": CONVERSATION, "tools": [WEATHER]}]
EXPORTS: dict[str, list[Any]] = {"langsmith": LANGSMITH, "langfuse": LANGFUSE, "otel": OTEL, "openai-jsonl": OPENAI}

names = st.sampled_from(["messages", "role", "content", "id", "input", "inputs", "value", "parts", "type", "metadata"])
others = json_values(names) | st.sampled_from(["2026-13-45", '{"a":', "[" * 3000, "user", 1e300, -1])


def lines_of(records: Any) -> bytes:
    """JSON Lines, as a program writes them that knows no half surrogate pairs."""
    listed = records if isinstance(records, list) else [records]
    return "".join(json.dumps(one) + "\n" for one in listed).encode()


@pytest.mark.parametrize("system", EXPORTS)
@thorough(30)
@given(data=st.data())
def test_an_export_of_another_system(system: str, data: st.DataObject) -> None:
    written = lines_of(data.draw(spoiled(EXPORTS[system], others)))
    written = written[: data.draw(st.none() | st.none() | st.integers(0, len(written)))]
    with TemporaryDirectory() as scratch:
        file = Path(scratch, "export.jsonl")
        file.write_bytes(written)
        store, demonstrations = TrajectoryStore(Path(scratch, "runs.sqlite")), Path(scratch, "demonstrations.jsonl")
        places: dict[str, Any] = {"scenarios": Path(scratch, "s.jsonl"), "demonstrations": demonstrations}
        first = outcome(lambda: import_runs(system, file, store=store, **places), ConfigError)
        if isinstance(first, ConfigError):
            assert str(file) in str(first)
            return
        assert len(list(store.list())) == first.runs.new
        again = import_runs(system, file, store=store, **places)
        assert (again.runs.new, again.scenarios.new, again.demonstrations.new, again.rewards.new) == (0, 0, 0, 0)
        assert (again.runs.known_count, len(list(store.list()))) == (first.read, first.runs.new)
        if places["scenarios"].exists():
            assert len(load_scenarios(places["scenarios"])) == first.scenarios.new
        if demonstrations.exists():
            assert len(load_conversations(demonstrations)) == first.demonstrations.new


SCENARIOS = [
    {"id": "a", "input": {"question": "x"}, "metadata": {"answer": "y"}},
    {"inputs": {"q": 1}, "outputs": {"a": 2}, "metadata": {"m": 3}},
    "hello",
]


@thorough(80)
@given(data=st.data())
def test_a_file_of_scenarios(data: st.DataObject) -> None:
    written = lines_of(data.draw(spoiled(SCENARIOS, others)))
    with TemporaryDirectory() as scratch:
        file = Path(scratch, "scenarios.jsonl")
        file.write_bytes(written[: data.draw(st.none() | st.none() | st.integers(0, len(written)))])
        scenarios = outcome(lambda: load_scenarios(file), ConfigError)
        if isinstance(scenarios, ConfigError):
            assert f"{file}, line " in str(scenarios)
        else:
            assert all(scenario.id for scenario in scenarios)


RUN: dict[str, Any] = {
    "id": "run-1",
    "rollout_id": "r-1",
    "scenario": {"id": "s", "input": "hi", "metadata": {}},
    "completions": [{"id": "chatcmpl-1", "node": "model", "model": "agent", "started": 1.0, "seconds": 0.5}],
    "tool_calls": [{"tool": "add", "arguments": {"a": 1}, "result": "1", "started": 1.0}],
    "nodes": [{"node": "model", "path": ["model"], "started": 1.0}],
    "reward": 1.0,
    "metrics": {"good": 1.0},
    "started": 1.0,
    "tokens": [{"id": "chatcmpl-1", "prompt_token_ids": [1], "token_ids": [2], "logprobs": [-0.5]}],
}


@thorough(80)
@given(data=st.data())
def test_a_file_of_runs_with_their_tokens(data: st.DataObject) -> None:
    with TemporaryDirectory() as scratch:
        file, store = Path(scratch, "runs.jsonl"), TrajectoryStore(Path(scratch, "runs.sqlite"))
        file.write_bytes(lines_of(data.draw(spoiled([RUN], others))))
        lines = outcome(lambda: list(read_jsonl(file, run_and_rows, what="trajectory")), ConfigError)
        if isinstance(lines, ConfigError):
            assert f"{file}, line " in str(lines)
            return
        for run in {run.id: run for run, _ in lines}.values():
            store.add(run)
            assert store.get(run.id) is not None
