"""The reward of a run, computed from the recorded tool calls and the final answer."""

from __future__ import annotations

from art_examples.learning.task import says

from art_langgraph import Trajectory
from art_mcp.specialization.verify import agreement

WEIGHTS = {"right_tool": 0.15, "right_arguments": 0.15, "faithful": 0.2, "success": 0.5}
"""Weights of the parts of a reward. They sum to 1. Success has half of it: where the first parts have more, some runs
learn to call the right tool again and again, and never answer."""


def reward(trajectory: Trajectory) -> dict[str, float]:
    """The weighted parts of the reward. They sum to 1.0 for a success, and to less if only some parts are correct."""
    return {name: WEIGHTS[name] * degree for name, degree in parts(trajectory).items()}


def success(trajectory: Trajectory) -> bool:
    """Whether the first call had the correct tool and arguments, and the final answer has its correct result."""
    return parts(trajectory)["success"] == 1.0


def parts(trajectory: Trajectory) -> dict[str, float]:
    """The parts of the reward without weights, each from 0 to 1. Only the first call that reached the server counts.

    A run that called another tool gets nothing. If it got something for its answer, a kind of question whose tool is
    never tried in the beginning would learn to use a wrong one.

    - right_tool: Whether it called the expected tool.
    - right_arguments: The share of correct arguments. Missing and additional arguments are wrong. Spaces around a name
      do not count, since the server ignores them.
    - faithful: Whether the answer has the value that the call gave, even if that value is not the expected one.
    - success: Whether tool, arguments and value are correct and the answer is faithful.
    """
    wanted = trajectory.scenario.metadata
    call = next((call for call in trajectory.tool_calls if call.server is not None), None)
    if call is None or call.tool != wanted["tool"]:
        return dict.fromkeys(WEIGHTS, 0.0)
    stripped = {name: value.strip() if isinstance(value, str) else value for name, value in call.arguments.items()}
    right_arguments = agreement(stripped, wanted["arguments"], defaults={})
    faithful = float(not call.is_error and bool(call.result) and says(answer(trajectory), str(call.result)))
    right_value = float(call.result == wanted["value"])
    return {
        "right_tool": 1.0,
        "right_arguments": right_arguments,
        "faithful": faithful,
        "success": float(right_arguments == 1.0 and faithful * right_value == 1.0),
    }


def answer(trajectory: Trajectory) -> str:
    """Text of the agent's final answer. Empty: the run ended without one."""
    last = trajectory.completions[-1].message if trajectory.completions else None
    return str(last["content"] or "") if last and not last.get("tool_calls") else ""
