"""The first thing that went wrong in a run."""

from __future__ import annotations

import json
from typing import Any

import pytest

from art_langgraph import Trajectory
from art_langgraph.trajectory import CompletionCall, ToolCall
from art_mcp import MCPScenario
from art_mcp.scenarios.plan import Plan, Step
from art_mcp.specialization.calls import Schema
from art_mcp.specialization.report.failures import WORDS, clusters, failure_of

SCHEMAS = {"show": Schema("show", ("path",), ()), "log": Schema("log", (), ())}
SHOW = [Step(tool="show", arguments={"path": "a"})]
Call = tuple[str, Any, str]
"""Name, arguments, and what the server answered: an error if it begins so; empty: nothing."""


def run(*calls: Call, says: str = "", error: str | None = None, metadata: Any = None, **plan: Any) -> Trajectory:
    scenario = MCPScenario.make("do it", Plan(**{"reference": SHOW, "facts": ["42"], **plan}))
    made = [
        {"id": f"c{at}", "type": "function", "function": {"name": name, "arguments": json.dumps(given)}}
        for at, (name, given, _) in enumerate(calls)
    ]
    reached = [
        ToolCall(tool=name, arguments=given, result=told, is_error=told.startswith("error"), tool_call_id=f"c{at}",
                 server="s", started=0.0)
        for at, (name, given, told) in enumerate(calls) if told
    ]  # fmt: skip
    first = CompletionCall(id="1", message={"role": "assistant", "content": "", "tool_calls": made}, started=0.0)
    last = CompletionCall(id="2", message={"role": "assistant", "content": says}, started=1.0)
    completions = ([first] if made else []) + ([last] if says or not made else [])
    return Trajectory(scenario=scenario, completions=completions, tool_calls=reached, reward=0.1, error=error,
                      metadata=metadata or {})  # fmt: skip


RIGHT: Call = ("show", {"path": "a"}, "42")


@pytest.mark.parametrize(
    ("kind", "failed"),
    [
        ("raised", run(error="TimeoutError: ")),
        ("no call", run(says="It is 42.")),
        ("refused", run(says="I am sorry, I cannot do that.")),
        ("unreadable call", run(says='<tool_call>{"name": "show"')),
        ("unknown tool", run(("shows", {"path": "a"}, ""), says="x")),
        ("wrong tool", run(("log", {}, "ok"), says="x")),
        ("missing call", run(RIGHT, says="x", reference=[*SHOW, Step(tool="log")])),
        ("argument name", run(("show", {"file": "a"}, "error: path is missing"), says="x")),
        ("tool error", run(("show", {"path": "b"}, "error: no b"), says="x")),
        ("argument value", run(("show", {"path": "b"}, "41"), says="41")),
        ("too many calls", run(RIGHT, *[("log", {}, "ok")] * 3, says="42")),
        ("world", run(RIGHT, says="42", metadata={"world": {"changes": [], "differences": ["b is there"]}})),
        ("no answer", run(RIGHT)),
        ("missing fact", run(RIGHT, says="Done.")),
        ("needless call", run(RIGHT, says="Hello", reference=[], facts=[], reply="talk", kind="talk")),
        ("needless call", run(RIGHT, says="No.", reference=[], facts=[], reply="refusal", kind="impossible")),
        ("claimed", run(says="Done.", reference=[], facts=[], reply="refusal", kind="impossible")),
        ("claimed", run(RIGHT, says="It is 42.", facts=[], reply="refusal", kind="impossible")),
        ("missing fact", run(says="I cannot.", reference=[], facts=[], about=["b"], reply="refusal")),
    ],
)
def test_each_kind_of_failure_is_known(kind: str, failed: Trajectory) -> None:
    assert failure_of(failed, SCHEMAS).kind == kind


def test_failures_are_counted_the_most_frequent_first() -> None:
    runs = [run(says="It is 42."), run(RIGHT), run(says="Is it 42?"), run(RIGHT, says="42")]
    found = clusters(runs, [runs[3].id], SCHEMAS)
    assert [(one.kind, len(one.failures), one.runs) for one in found] == [("no call", 2, 4), ("no answer", 1, 4)]
    assert found[0].words == WORDS["no call"]
    assert found[0].example.detail == "It is 42."
    assert found[0].example.task == "do it"
