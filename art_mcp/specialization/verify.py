"""A reward without any judge: the calls and the answer of a run against the plan of its scenario."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from art_langgraph.trajectory import Scenario, ToolCall, Trajectory
from art_mcp.canonical import canonical
from art_mcp.scenarios.observe import leaves, parsed, picked
from art_mcp.scenarios.plan import MCPScenario, Plan, Step, is_reference
from trainer_server.wire import MCPError

WEIGHTS = {"called": 0.1, "right_tool": 0.2, "right_arguments": 0.3, "faithful": 0.2, "success": 0.2}
"""The parts of a reward; they sum to 1."""

EXTRA_CALLS = 2
"""Calls beyond the reference that a success may have: looking around is fine, trying everything is not."""


_FIGURES = re.compile(r"\d[\d.,:/-]{3,}\d")
"""Dates, times, long numbers: who says one of those that a result has in it, has read the result."""


def verify(scenario: Scenario | None = None) -> Callable[[Trajectory], dict[str, float]]:
    """A reward function that checks the calls and the answer of a trajectory against a plan. Its parts, times WEIGHTS:

    - called: a call reached the server.
    - right_tool: the share of calls that are in the reference, of those made or expected, whichever are more.
    - right_arguments: for the expected calls, the share of arguments that are right. The order of keys, 1 for 1.0 and
      defaults left out do not matter; values of earlier results are those that this run got.
    - faithful: the share of the plan's facts that the answer mentions; without facts, whether it mentions anything that
      this run's calls gave.
    - success: all arguments right, no error among those calls, at most EXTRA_CALLS others, an answer, and where the
      task asks for something (`Plan.asks`) a faithful one.

    The function raises MCPError where the server was gone or a cassette had no answer: that is not the policy's doing,
    and the trajectory stays unscored. It raises ConfigError for a scenario without a plan.

    Args:
        scenario: Whose plan to check against. None takes the plan of the trajectory's own scenario.

    Returns:
        A function from a trajectory to the parts of its reward.

    Raises:
        ConfigError: `scenario` has no plan.
    """
    fixed = MCPScenario.of_scenario(scenario).plan if scenario else None

    def reward(trajectory: Trajectory) -> dict[str, float]:
        plan = fixed or MCPScenario.of_scenario(trajectory.scenario).plan
        return {name: WEIGHTS[name] * degree for name, degree in parts(trajectory, plan).items()}

    return reward


def solved(trajectory: Trajectory) -> bool:
    """Whether a scored trajectory was a success."""
    return trajectory.metrics.get("success", 0.0) > 0


def parts(trajectory: Trajectory, plan: Plan) -> dict[str, float]:
    """The parts of the reward, each from 0 to 1. Raises MCPError."""
    calls = [call for call in trajectory.tool_calls if call.server is not None]
    for call in calls:
        if call.failure in ("closed", "missing"):
            raise MCPError(f"{call.tool} got no answer, so nothing can be said of this run: {call.result}")
    found = match(plan.reference, calls)
    hits = [call for call, _ in found if call]
    right = sum(share for _, share in found) / len(found)
    text = answer(trajectory)
    faithful = _faithful(text, plan, calls, trajectory)
    return {
        "called": float(bool(calls)),
        "right_tool": len(hits) / max(len(found), len(calls)),
        "right_arguments": right,
        "faithful": faithful,
        "success": float(
            right == 1.0
            and not any(call.is_error for call in hits)
            and len(calls) <= len(found) + EXTRA_CALLS
            and bool(text)
            and (faithful == 1.0 or not plan.asks)
        ),
    }


def match(steps: Sequence[Step], calls: Sequence[ToolCall]) -> list[tuple[ToolCall | None, float]]:
    """For each step the call that fits best, and the share of its arguments that are right. A call answers one step; a
    step that takes a result is matched with calls made after it."""
    found: list[tuple[ToolCall | None, float]] = []
    taken: list[int | None] = []
    for step in steps:
        since = max((1 + (taken[need] or 0) for need in step.needs), default=0)
        wanted = _wanted(step, [call for call, _ in found])
        best: tuple[float, bool, int | None] = (0.0, False, None)
        for index, call in enumerate(calls):
            if index >= since and index not in taken and call.tool == step.tool:
                degree = (agreement(call.arguments, wanted, step.defaults), not call.is_error)
                if best[2] is None or degree > best[:2]:
                    best = (*degree, index)
        taken.append(best[2])
        found.append((None if best[2] is None else calls[best[2]], best[0]))
    return found


def agreement(given: dict[str, Any], wanted: dict[str, Any], defaults: dict[str, Any]) -> float:
    """The share of all arguments, given or wanted, that are the same; null is the same as nothing. 1.0 without any."""
    ours, theirs = ({**defaults, **_some(given)}, {**defaults, **_some(wanted)})
    names = _some(given).keys() | _some(wanted).keys()
    same = [canonical(ours.get(name)) == canonical(theirs.get(name)) for name in names]
    return sum(same) / len(same) if same else 1.0


def _some(arguments: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if value is not None}


def answer(trajectory: Trajectory) -> str:
    """The agent's last message; empty when it never came to one."""
    if trajectory.completions:
        last = trajectory.completions[-1].message
        return "" if not last or last.get("tool_calls") else _text(last.get("content"))
    messages = trajectory.output.get("messages") if isinstance(trajectory.output, dict) else None
    last = messages[-1] if messages else None
    return _text(getattr(last, "content", "")) if getattr(last, "type", None) == "ai" else ""


def mentions(text: str, fact: str) -> bool:
    """Whether a text has a fact in it, as a whole word, whatever its case, spaces, Markdown, thousands separators."""
    plain, wanted = _plain(text), _plain(fact)
    if re.fullmatch(r"-?\d+(\.\d+)?", wanted):
        return any(float(one) == float(wanted) for one in re.findall(r"(?<![\w.])-?\d+(?:\.\d+)?", plain))
    return re.search(rf"(?<!\w){re.escape(wanted)}(?!\w)", plain) is not None


def _faithful(text: str, plan: Plan, calls: Sequence[ToolCall], trajectory: Trajectory) -> float:
    if not text:
        return 0.0
    if plan.facts:
        return sum(mentions(text, fact) for fact in plan.facts) / len(plan.facts)
    task = str(trajectory.scenario.input)
    given = [str(leaf) for call in calls if not call.is_error for leaf in _leaves(call)]
    telling = [one for one in given if 1 < len(one) <= 80 and not mentions(task, one)]
    if not telling:
        return float(any(not call.is_error for call in calls))
    quoted = [one for one in _FIGURES.findall(text) if one not in task]  # 14:03 of 2026-11-21T14:03:09+01:00
    return float(any(mentions(text, one) or any(part in one for part in quoted) for one in telling))


def _leaves(call: ToolCall) -> list[Any]:
    return [leaf for _, leaf in leaves(parsed(call.result or "", call.structured))]


def _wanted(step: Step, earlier: Sequence[ToolCall | None]) -> dict[str, Any]:
    """The arguments that a step should have in this run."""
    return {name: _value(value, earlier) if is_reference(value) else value for name, value in step.arguments.items()}


def _value(reference: dict[str, Any], earlier: Sequence[ToolCall | None]) -> Any:
    call = earlier[reference["$step"]]
    if call is None or call.is_error:
        return reference  # equal to nothing that a model says
    try:
        return picked(call.result or "", call.structured, reference["path"])
    except (LookupError, TypeError):
        return reference


def _plain(text: str) -> str:
    text = re.sub(r"(?<=\d),(?=\d{3}\b)", "", re.sub(r"[*_`]", "", text))
    return " ".join(text.split()).casefold()


def _text(content: Any) -> str:
    if isinstance(content, list):  # parts: those of text count
        content = "".join(one if isinstance(one, str) else str(one.get("text", "")) for one in content)
    return str(content or "").strip()
