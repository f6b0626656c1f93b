"""How good a run was, from the tool calls that really happened and the final answer."""

from __future__ import annotations

from art_langgraph import Trajectory


def success(trajectory: Trajectory) -> bool:
    """The right tool with the right arguments, called once and answered, and its value in the final answer."""
    parts = facts(trajectory)
    return all(parts.values())


def facts(trajectory: Trajectory) -> dict[str, bool]:
    """What makes a success, one by one."""
    wanted = trajectory.scenario.metadata
    calls = [call for call in trajectory.tool_calls if call.server is not None and not call.is_error]
    first = calls[0] if calls else None
    right_tool = first is not None and first.tool == wanted["tool"]
    right_arguments = first is not None and right_tool and first.arguments == wanted["arguments"]
    result = first.result if first is not None and right_arguments else None
    return {
        "called": bool(trajectory.tool_calls),
        "right_tool": right_tool,
        "right_arguments": right_arguments,
        "value_in_answer": result is not None and result == wanted["value"] and result in answer(trajectory),
        "one_call": len(trajectory.tool_calls) == 1,
    }


def answer(trajectory: Trajectory) -> str:
    """The agent's last message; empty when it never came to one."""
    last = trajectory.completions[-1].message if trajectory.completions else None
    return str(last["content"] or "") if last and not last.get("tool_calls") else ""


def reward(trajectory: Trajectory) -> dict[str, float]:
    """Graded, so that a run that gets one thing more right is worth more: 1.0 for a success."""
    weights = {"called": 0.1, "right_tool": 0.3, "right_arguments": 0.2, "value_in_answer": 0.3, "one_call": 0.1}
    return {name: weights[name] * met for name, met in facts(trajectory).items()}
