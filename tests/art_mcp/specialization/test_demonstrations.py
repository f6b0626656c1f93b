"""Demonstrations: references as conversations."""

from __future__ import annotations

from typing import Any

import pytest

from art_mcp.scenarios.plan import MCPScenario, Observation, Plan, Reading, Step
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
    return calls_of(messages)


def calls_of(messages: list[dict[str, Any]]) -> list[list[str]]:
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


def test_before_several_calls_the_tools_are_named() -> None:
    def said(*steps: Step) -> list[str]:
        plan = Plan(reference=list(steps), observations=[Observation(text='{"head": "a1"}')] * len(steps))
        messages = demonstration(MCPScenario.make("Look it up.", plan))
        return [message["content"] for message in messages[:-1] if message["role"] == "assistant"]

    assert said(STATUS) == [""]
    assert said(STATUS, LOG) == ["I need status, then log."]
    assert said(LOG, SHOW) == ["I need log, then show.", "Next I need show."]
    assert said(LOG, STATUS, SHOW) == ["I need log, then status, then show.", "Next I need show."]


def test_each_of_several_requests_is_repeated_before_its_call_and_answered_before_the_next_one() -> None:
    seen = [Observation(text='{"head": "a1"}'), Observation(text='{"clean": true}')]
    plan = Plan(
        reference=[LOG, STATUS], observations=seen, facts=["a1"], answer="It is a1. It is clean.",
        answers=["It is a1.", "It is clean."], requests=["What is the head?", "Is it clean?"],
    )  # fmt: skip
    task = "By the way, what is the head? Also: Is it clean?"
    messages = demonstration(MCPScenario.make(task, plan))[1:]
    assert [message["role"] for message in messages] == ["assistant", "tool", "assistant", "tool", "assistant"]
    assert [message["content"] for message in messages[::2]] == [
        "First: What is the head?",
        "It is a1. Next: Is it clean?",
        "It is a1. It is clean.",
    ]
    changed = plan.model_copy(update={"facts": ["b2"]})  # as people edit them: the answers are no longer right
    assert calls_of(demonstration(MCPScenario.make(task, changed))) == [["log", "status"]]
    in_other_words = demonstration(MCPScenario.make("Head? Clean?", plan))[1:]
    assert in_other_words[0]["content"] == "I need log, then status."
    with pytest.raises(ValueError, match="1 `answers` for 2 calls"):
        Plan(reference=[LOG, STATUS], answers=["It is a1."])
    with pytest.raises(ValueError, match="1 `requests` for 0 `answers`"):
        Plan(reference=[LOG, STATUS], requests=["What is the head?"])


def test_without_an_answer_of_the_plan_each_fact_is_told_with_its_key() -> None:
    seen = [Observation(text='{"head": "a1", "size": 12}'), Observation(text="Author: Ada\nlamp")]
    plan = Plan(reference=[STATUS, LOG], observations=seen, facts=["a1", "12", "Ada", "lamp", "none"])
    said = demonstration(MCPScenario.make("Look it up.", plan))[-1]["content"]
    assert said == "The head is a1. The size is 12. The author is Ada. It is lamp. It is none."
    reading = plan.model_copy(update={"facts": [], "readings": [Reading(step=1, path=["Author", 0])]})
    assert demonstration(MCPScenario.make("Look it up.", reading))[-1]["content"] == "The author is Ada."
