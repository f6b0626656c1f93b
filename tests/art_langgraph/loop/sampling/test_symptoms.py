"""What dead runs have in common."""

from __future__ import annotations

from typing import Any

import pytest

from art_langgraph import Trajectory
from art_langgraph.loop.sampling.dead_groups import ReferenceRuns, Symptom, symptoms_of
from art_langgraph.trajectory import ToolCall
from tests.support.runs.groups import run


def tool(name: str, *, is_error: bool = False, result: str = "found", at: int = 0) -> ToolCall:
    return ToolCall(tool=name, is_error=is_error, result=result, tool_call_id=f"call-{at}", started=1.0)


def symptoms(*runs: Trajectory, others: tuple[Trajectory, ...] = ()) -> list[Symptom]:
    return symptoms_of(runs, ReferenceRuns.of([*runs, *others]))


@pytest.mark.parametrize(
    "told",
    [
        "Error: lookup is not a valid tool, try one of [search].",
        "Unknown tool: lookup",
        "MCP error -32602: Tool lookup not found",
    ],
)
def test_a_tool_that_does_not_exist_is_known_by_the_answer(told: str) -> None:
    first = symptoms(*(run("a", 0.0, calls=[("lookup", told)]) for _ in range(3)))[0]
    assert first == Symptom("missing tool", "called the tool 'lookup', which does not exist", 3)


@pytest.mark.parametrize("told", ["Error: city 'Oslo' not found by tool lookup", "no such tool as a hammer: lookup"])
def test_an_error_of_a_tool_that_exists_is_none_of_a_missing_tool(told: str) -> None:
    made = {"calls": [("lookup", told)], "tool_calls": [tool("lookup", is_error=True, result=told)]}
    kinds = {one.kind for one in symptoms(*(run("a", 0.0, **made) for _ in range(2)))}
    assert "tool error" in kinds
    assert "missing tool" not in kinds


def test_or_by_the_tools_of_other_runs() -> None:
    """An agent may drop such a call without a word to the model."""
    lost = [run("a", 0.0, calls=[("lookup", "")]) for _ in range(2)]
    works = run("b", 1.0, calls=[("search", "found")], tool_calls=[tool("search")])
    assert symptoms(*lost, others=(works,))[0].kind == "missing tool"
    assert all(one.kind != "missing tool" for one in symptoms(*lost))  # no run shows which tools there are


@pytest.mark.parametrize(
    ("fields", "kind", "text"),
    [
        ({"error": "ValueError: no"}, "raised", "raised ValueError: no"),
        ({"reward": None, "reward_error": "KeyError: 'x'"}, "unscored", "had no reward: KeyError: 'x'"),
        (
            {
                "calls": [("search", "Error: q is missing")],
                "tool_calls": [tool("search", is_error=True, result="no q")],
            },
            "tool error",
            "got an error from the tool 'search': no q",
        ),
        ({"reward_reason": "too short"}, "judge", "were judged: 'too short'"),
        ({"metrics": {"style": 1.0, "exact": 0.0}}, "part", "got 0 for the part 'exact' of the reward"),
        ({"output": "42"}, "same answer", "said the same: '42'"),
    ],
)
def test_each_kind(fields: dict[str, Any], kind: str, text: str) -> None:
    options = {"reward": 0.0, **fields}
    found = symptoms(*(run("a", **options) for _ in range(2)))
    assert Symptom(kind, text, 2) in found  # type: ignore[arg-type]


def test_no_call_of_any_tool_is_a_symptom_where_others_call_some() -> None:
    works = run("b", 1.0, calls=[("search", "found")], tool_calls=[tool("search")])
    silent = run("a", 0.0, output="I do not know.")
    assert "no tool" in {one.kind for one in symptoms(silent, others=(works,))}
    assert "no tool" not in {one.kind for one in symptoms(silent)}


def test_the_commonest_comes_first_and_what_few_have_is_left_out() -> None:
    runs = [run("a", 0.0, metrics={"exact": 0.0}, output=f"{at}") for at in range(4)]
    runs[0].error = "ValueError: no"
    runs[1].error = runs[2].error = "OSError: gone"
    assert [(one.kind, one.runs) for one in symptoms(*runs)] == [("part", 4), ("raised", 2)]
