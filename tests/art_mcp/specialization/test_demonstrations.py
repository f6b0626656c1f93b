"""Demonstrations: references as conversations."""

from __future__ import annotations

from art_mcp.scenarios.plan import MCPScenario, Observation, Plan, Step
from art_mcp.specialization.demonstrations import demonstration

STATUS = Step(tool="status", reads=True)
LOG = Step(tool="log", reads=True)
COMMIT = Step(tool="commit")
SHOW = Step(tool="show", arguments={"revision": {"$step": 0, "path": ["head"]}}, reads=True)


def calls(*steps: Step) -> list[list[str]]:
    """The names of the tools that each message of the demonstration calls."""
    seen = [Observation(text='{"head": "a1"}')] * len(steps)
    plan = Plan(reference=list(steps), observations=seen, answer="It is a1.")
    messages = demonstration(MCPScenario.make("Look it up.", plan))
    told = [call["id"] for message in messages for call in message.get("tool_calls", ())]
    assert [message["tool_call_id"] for message in messages if message["role"] == "tool"] == told
    assert messages[-1]["content"] == "It is a1."
    return [
        [call["function"]["name"] for call in message["tool_calls"]] for message in messages if "tool_calls" in message
    ]


def test_independent_reads_are_made_by_one_message() -> None:
    assert calls(STATUS, LOG) == [["status", "log"]]


def test_a_call_that_needs_a_result_waits_for_it() -> None:
    assert calls(LOG, SHOW) == [["log"], ["show"]]
    assert calls(LOG, STATUS, SHOW) == [["log", "status"], ["show"]]


def test_a_call_that_changes_something_is_made_alone() -> None:
    assert calls(COMMIT, STATUS) == [["commit"], ["status"]]
    assert calls(STATUS, COMMIT, LOG) == [["status"], ["commit"], ["log"]]
