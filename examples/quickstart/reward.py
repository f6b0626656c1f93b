"""How good a run was, from the tool calls that really happened and the final answer."""

from __future__ import annotations

from typing import Any

from art_langgraph import Trajectory

WEIGHTS = {"called": 0.1, "right_tool": 0.2, "right_arguments": 0.3, "faithful": 0.2, "success": 0.2}


def reward(trajectory: Trajectory) -> dict[str, float]:
    """1.0 for a success; graded, so that a run that gets one thing more right is worth more."""
    return {name: WEIGHTS[name] * degree for name, degree in parts(trajectory).items()}


def success(trajectory: Trajectory) -> bool:
    """The first call that reached the server: the right tool, the right arguments, its value in the final answer."""
    return parts(trajectory)["success"] == 1.0


def parts(trajectory: Trajectory) -> dict[str, float]:
    """What makes a success, one by one, each from 0 to 1.

    called: a call reached the MCP server. right_arguments: the share of arguments that are right, where missing and
    needless ones are wrong. faithful: the answer has the value that the call gave, right or wrong.
    """
    wanted = trajectory.scenario.metadata
    call = next((call for call in trajectory.tool_calls if call.server is not None), None)
    if call is None:
        return dict.fromkeys(WEIGHTS, 0.0)
    right_tool = float(call.tool == wanted["tool"])
    right_arguments = right_tool * agreement(call.arguments, wanted["arguments"])
    faithful = float(not call.is_error and bool(call.result) and str(call.result) in answer(trajectory))
    right_value = float(call.result == wanted["value"])
    return {
        "called": 1.0,
        "right_tool": right_tool,
        "right_arguments": right_arguments,
        "faithful": faithful,
        "success": float(right_arguments == 1.0 and faithful * right_value == 1.0),
    }


def agreement(given: dict[str, Any], wanted: dict[str, Any]) -> float:
    """Share of all names in either that have the same value in both."""
    names = given.keys() | wanted.keys()
    return sum(name in given and name in wanted and given[name] == wanted[name] for name in names) / max(len(names), 1)


def answer(trajectory: Trajectory) -> str:
    """The agent's last message; empty when it never came to one."""
    last = trajectory.completions[-1].message if trajectory.completions else None
    return str(last["content"] or "") if last and not last.get("tool_calls") else ""
