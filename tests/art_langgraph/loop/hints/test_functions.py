"""Ready-made hints: what they say, and where they have nothing to say."""

from __future__ import annotations

from typing import Any

from art_langgraph import Scenario, Trajectory, first_hint, hint_errors, hint_judge, hint_reference, hint_tools
from art_langgraph.trajectory import ToolCall

SCENARIO = Scenario(input="?", metadata={"answer": 42})


def run(**fields: Any) -> Trajectory:
    return Trajectory(scenario=SCENARIO, **fields)


def call(tool: str, result: str, *, is_error: bool) -> ToolCall:
    return ToolCall(tool=tool, result=result, is_error=is_error, started=0.0)


def test_errors_are_listed_once_the_most_frequent_first() -> None:
    unknown = call("get", "there is no tool get;\n use read", is_error=True)
    failed = [
        run(tool_calls=[call("read", "no such file", is_error=True), unknown]),
        run(tool_calls=[unknown, call("read", "text", is_error=False)]),
        run(error="ValueError: 7"),
    ]
    assert (hint_errors(SCENARIO, failed) or "").splitlines()[1:] == [
        "- get: there is no tool get; use read",
        "- read: no such file",
        "- ValueError: 7",
    ]
    assert hint_errors(SCENARIO, [run()]) is None


def test_what_a_judge_said() -> None:
    assert (hint_judge(SCENARIO, [run(reward_reason="too long"), run()]) or "").splitlines()[1:] == ["- too long"]
    assert hint_judge(SCENARIO, [run()]) is None


def test_a_reference_of_the_scenario() -> None:
    assert hint_reference()(SCENARIO, []) == "A correct solution: 42"
    assert hint_reference("answer", "Say {}.")(SCENARIO, []) == "Say 42."
    assert hint_reference("solution")(SCENARIO, []) is None


async def test_the_first_function_that_has_a_hint_gives_it() -> None:
    async def nothing(scenario: Scenario, failed: list[Trajectory]) -> str | None:
        return None

    given: Any = first_hint(nothing, hint_errors, hint_tools(["read", "write"]), hint_reference())(SCENARIO, [run()])
    assert await given == "These tools exist, and no others: read, write."
    nobody: Any = first_hint(nothing)(SCENARIO, [])
    assert await nobody is None
