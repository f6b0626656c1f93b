"""A reward without a judge: checks the calls, the world and the answer of a run against the plan of its scenario."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from art_langgraph.trajectory import Scenario, ToolCall, Trajectory
from art_mcp.canonical import canonical
from art_mcp.client.in_world import WORLD_KEY
from art_mcp.scenarios.agreement import agreement, omit_nulls
from art_mcp.scenarios.lines import mentions
from art_mcp.scenarios.observe import leaves, parse_result, pick_value
from art_mcp.scenarios.phrasing.answers import refuses
from art_mcp.scenarios.plan import MCPScenario, Observation, Plan, Reading, Step, is_reference
from art_mcp.worlds.change import Change, Comparison, compare
from trainer_server.wire import ConfigError, MCPError

WEIGHTS = {"called": 0.05, "right_tool": 0.1, "right_arguments": 0.2, "faithful": 0.15, "success": 0.5}
"""Weights of the parts of a reward. They sum to 1. Success weighs as much as all others together: it is what counts,
and a run that is nearly right must be clearly worse than one that is."""

WORLD_WEIGHT = 0.25
"""Weight of the part `world`, where there is one. The other parts then share what is left."""

_WEIGHTS_IN_WORLD = {name: (1 - WORLD_WEIGHT) * weight for name, weight in WEIGHTS.items()} | {"world": WORLD_WEIGHT}

EXTRA_CALLS = 2
"""Maximum number of calls beyond the reference in a successful run: some exploration is allowed, trial of all tools is
not."""

_FIGURES = re.compile(r"\d[\d.,:/-]{3,}\d")
"""Dates, times, long numbers. An answer that has such a part of a result shows that the agent has read the result."""


def verify(scenario: Scenario | None = None) -> Callable[[Trajectory], dict[str, float]]:
    """Makes a reward function that checks the calls and the answer of a trajectory against a plan.

    The reward has these parts, each multiplied by its weight in WEIGHTS:

    - called: Whether a call reached the server.
    - right_tool: The number of expected calls that were made, divided by the number of expected calls or of calls that
      were made, whichever is larger.
    - right_arguments: The share of correct arguments, as the mean over the expected calls. The order of keys, 1 for
      1.0, and omitted defaults do not matter. Arguments that reference earlier results are compared with this run's
      results. Of a step with `by_result`, such as a query, all arguments are correct that give the same values. Of a
      step that only reads they may differ in capital and small letters, if they give the same values.
    - faithful: The share of the plan's facts and readings that the answer mentions. A reading is what this run's own
      call gave. If a plan that asks has neither: whether the answer mentions a value that this run's calls gave. An
      answer that says a sentence again, or gives several values of the same thing, has the share of its other
      sentences of that: a policy would soon guess until a value is right.
    - world: Where the reference or the run changed the world (`Plan.changes`): the number of changes that are as those
      of the reference, divided by the number of changes that were expected or made. What differs is put into words in
      `trajectory.metadata["world"]["differences"]`.
    - success: Whether all arguments are correct, the expected calls gave no error, at most EXTRA_CALLS other calls were
      made, and there is an answer. If the task asks for information (`Plan.asks`), the answer must be faithful. If the
      task changes the world, what should have changed did, and nothing else; by which calls does not matter then,
      unless values that vary from run to run hide whether the change is right. No answer is a success that says a
      sentence again.

    A task that cannot be done (`Plan.reply` is "refusal") is a success if the answer says so, names what is missing
    (`Plan.about`), and nothing was changed. The call that would have been right may be made. A task that needs no tool
    is a success if it is answered without a call; then the parts of the calls are 1.0 too.

    The function raises MCPError if the server had ended or a cassette had no answer. The policy cannot change that, so
    the trajectory stays without a score. It raises ConfigError for a scenario without a plan, and where a world should
    have changed and the run had none.

    Args:
        scenario: The scenario with the plan to check against. None takes the scenario of each trajectory.

    Returns:
        A function from a trajectory to the weighted parts of its reward.

    Raises:
        ConfigError: `scenario` has no plan.
    """
    scenario_plan = MCPScenario.of_scenario(scenario).plan if scenario else None

    def reward(trajectory: Trajectory) -> dict[str, float]:
        plan = scenario_plan or MCPScenario.of_scenario(trajectory.scenario).plan
        verdict = compared_world(trajectory, plan)
        if verdict:
            record = trajectory.metadata.get(WORLD_KEY) or {"changes": []}
            trajectory.metadata[WORLD_KEY] = {**record, "differences": verdict.differences}
        weights = WEIGHTS if verdict is None else _WEIGHTS_IN_WORLD
        return {name: weights[name] * degree for name, degree in parts(trajectory, plan, verdict).items()}

    return reward


_CLOCK = re.compile(r"\d{1,2}:\d{2}")
"""Hours and minutes."""

_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+")
_HEAD = re.compile(r"(?:\S+ ){2,}(?:is|are|was|were) ")
"""What a sentence tells the value of: "the id of order 7 is "."""

_NO_ANSWER = ("closed", "missing", "limited")
"""Failures of calls that say nothing of the run: the server had ended, or refused too many calls, or a cassette had no
answer."""


def solved(trajectory: Trajectory) -> bool:
    """Whether a scored trajectory was a success."""
    return trajectory.metrics.get("success", 0.0) > 0


def compared_world(trajectory: Trajectory, plan: Plan) -> Comparison | None:
    """Compares what a run changed in its world with what the reference changed.

    Returns:
        The comparison. None: neither changed anything, or there was no world when the reference was executed.

    Raises:
        ConfigError: The reference changed its world, and nobody knows what the run changed.
    """
    record = trajectory.metadata.get(WORLD_KEY)
    if plan.changes is None:
        return None
    answers = [call for call in trajectory.tool_calls if call.server is not None and call.failure not in _NO_ANSWER]
    if record is None and plan.changes and answers:
        raise ConfigError("the reference changed its world, and the run had none: connect to the server with worlds=")
    changes = [Change.model_validate(change) for change in (record or {}).get("changes", ())]
    return compare(plan.changes, changes) if plan.changes or changes else None


def parts(trajectory: Trajectory, plan: Plan, comparison: Comparison | None = None) -> dict[str, float]:
    """The parts of the reward without weights, each from 0 to 1.

    Args:
        trajectory: The run.
        plan: The plan to check against.
        comparison: The run's world beside that of the reference. None: there is no such part.

    Raises:
        MCPError: The server had ended, or a cassette had no answer.
    """
    calls = [call for call in trajectory.tool_calls if call.server is not None]
    for call in calls:
        if call.failure in _NO_ANSWER:
            raise MCPError(f"{call.tool} got no answer, so nothing can be said of this run: {call.result}")
    matches = match(plan.reference, calls, plan.observations, plan.facts)
    hits = [call for call, _ in matches if call]
    right = sum(share for _, share in matches) / len(matches) if matches else float(not calls)
    text = answer(trajectory)
    if plan.reply == "result":
        faithful = _faithful(text, plan, [call for call, _ in matches], calls, trajectory)
    else:
        faithful = float(_replied(text, plan))
    clear = _clear(text, plan)
    faithful *= clear
    world = {"world": comparison.degree} if comparison else {}
    as_planned = right == 1.0 and not any(call.is_error for call in hits)
    by_state = bool(plan.changes) and not any(change.varies for change in plan.changes or ())
    as_wanted = as_planned or by_state if plan.reply == "result" else bool(plan.reference) or not calls
    return {
        "called": float(bool(calls) is bool(plan.reference)),
        "right_tool": len(hits) / max(len(matches), len(calls)) if matches or calls else 1.0,
        "right_arguments": right,
        "faithful": faithful,
        **world,
        "success": float(
            as_wanted
            and world.get("world", 1.0) == 1.0
            and len(calls) <= len(matches) + EXTRA_CALLS
            and bool(text)
            and clear == 1.0
            and (faithful == 1.0 or not (plan.asks or plan.reply != "result"))
        ),
    }


def match(
    steps: Sequence[Step],
    calls: Sequence[ToolCall],
    observations: Sequence[Observation] = (),
    facts: Sequence[str] = (),
) -> list[tuple[ToolCall | None, float]]:
    """Finds the best call for each step. A step that takes a result is only matched with calls made after that result.

    A look-up may have other arguments than the reference, as long as the step that takes its result has the value that
    the reference found. Servers have several tools for the same: a reading step may be done with another one that was
    given the same values, if its result tells the same.

    Args:
        steps: The steps of the reference.
        calls: The calls of the run. Each is matched with at most one step.
        observations: What each step gave when the reference was executed. Empty: that is not known.
        facts: What the answer must mention.

    Returns:
        For each step the call and the share of its arguments that are correct; None and 0.0 if there is no call.
    """
    matches: list[tuple[ToolCall | None, float]] = []
    indexes: list[int | None] = []
    for number, step in enumerate(steps):
        since = max((1 + (indexes[need] or 0) for need in step.needs), default=0)
        expected = [_resolve_arguments(step, [call for call, _ in matches])]
        if step.needs and number < len(observations):
            expected.append(_resolve_arguments(step, observations))
        best: tuple[float, bool, int | None] = (0.0, False, None)
        for index, call in enumerate(calls):
            if index >= since and index not in indexes and call.tool == step.tool:
                share = max(agreement(call.arguments, each, step.defaults) for each in expected)
                may_differ = step.by_result or (step.reads and any(_same_words(call, each) for each in expected))
                if share < 1.0 and may_differ and number < len(observations) and _gave(call, observations[number]):
                    share = 1.0
                degree = (share, not call.is_error)
                if best[2] is None or degree > best[:2]:
                    best = (*degree, index)
        if best[0] < 1.0 and number < len(observations):
            free = (index for index in range(len(calls)) if index not in indexes)
            good = (at for at in free if _as_good(calls[at], step, observations[number], facts))
            best = next(((1.0, True, at) for at in good), best)
        indexes.append(best[2])
        matches.append((None if best[2] is None else calls[best[2]], best[0]))
    needs = {need for step, (_, share) in zip(steps, matches, strict=True) if share == 1.0 for need in step.needs}
    if observations:
        looked_up = [at in needs and call is not None and not call.is_error for at, (call, _) in enumerate(matches)]
        matches = [(call, 1.0 if is_used else share) for (call, share), is_used in zip(matches, looked_up, strict=True)]
    return matches


def _same_words(call: ToolCall, step_arguments: dict[str, Any]) -> bool:
    """Whether arguments differ from the wanted ones in capital and small letters alone."""
    return canonical(omit_nulls(call.arguments)).casefold() == canonical(omit_nulls(step_arguments)).casefold()


def _as_good(call: ToolCall, step: Step, observation: Observation, facts: Sequence[str]) -> bool:
    """Whether a call of another tool does for a reading step: it was given the same values and tells the same."""
    if call.tool == step.tool or call.is_error or step.needs or not step.reads:
        return False
    values = {canonical(leaf) for _, leaf in leaves(call.arguments)}
    if not {canonical(leaf) for _, leaf in leaves(step.arguments)} <= values:
        return False
    present = [fact for fact in facts if mentions(observation.text, fact)]
    return _gave(call, observation) or (bool(present) and all(mentions(call.result or "", fact) for fact in present))


def _gave(call: ToolCall, observation: Observation) -> bool:
    """Whether a call gave the values that the reference gave."""
    expected = [canonical(leaf) for _, leaf in leaves(parse_result(observation.text, observation.structured))]
    return not call.is_error and bool(expected) and [canonical(leaf) for leaf in _leaves(call)] == expected


def answer(trajectory: Trajectory) -> str:
    """Text of the agent's final answer. Empty: the run ended without one."""
    if trajectory.completions:
        last = trajectory.completions[-1].message
        return "" if not last or last.get("tool_calls") else _text(last.get("content"))
    messages = trajectory.output.get("messages") if isinstance(trajectory.output, dict) else None
    last = messages[-1] if messages else None
    return _text(getattr(last, "content", "")) if getattr(last, "type", None) == "ai" else ""


def _replied(text: str, plan: Plan) -> bool:
    """Whether an answer is right for a task that cannot be done, or that needs no tool."""
    mentions_subject = not plan.about or any(mentions(text, name) for name in plan.about)
    return bool(text) and mentions_subject and (plan.reply != "refusal" or refuses(text))


def _clear(text: str, plan: Plan) -> float:
    """The share of an answer's sentences that say nothing again, and no other value of what an earlier one tells.

    A plan of several calls may have the same sentence for each of them. Sentences of less than four words do not count.
    """
    parts = (" ".join(part.casefold().split()) for part in _SENTENCE_END.split(text))
    counts = Counter(part for part in parts if part.count(" ") >= 3)
    if not counts:
        return 1.0
    most = max(1, len(plan.reference))
    heads = Counter(head[0] for sentence in counts if (head := _HEAD.match(sentence)))
    more = sum(max(0, count - most) for count in (*counts.values(), *heads.values()))
    return max(0.0, 1 - more / counts.total())


def _faithful(
    text: str,
    plan: Plan,
    step_calls: Sequence[ToolCall | None],
    calls: Sequence[ToolCall],
    trajectory: Trajectory,
) -> float:
    """The part `faithful` of the reward. text: the final answer. step_calls: the call of each step."""
    if not text:
        return 0.0
    task = str(trajectory.scenario.input)
    if plan.facts or plan.readings:
        checks = [mentions(text, fact) for fact in plan.facts]
        checks += [_read_off(text, task, reading, step_calls) for reading in plan.readings]
        return sum(checks) / len(checks)
    if not plan.asks:
        return 1.0
    values = [str(leaf) for call in calls if not call.is_error for leaf in _leaves(call)]
    new = [value for value in values if 1 < len(value) <= 80 and not mentions(task, value)]
    if not new:
        return float(any(not call.is_error for call in calls))
    return float(any(mentions(text, value) or _has_figure(text, task, value) for value in new))


def _read_off(text: str, task: str, reading: Reading, step_calls: Sequence[ToolCall | None]) -> bool:
    """Whether an answer mentions a value that this run's own call gave, or its time."""
    call = step_calls[reading.step] if reading.step < len(step_calls) else None
    if call is None or call.is_error:
        return False
    try:
        value = pick_value(call.result or "", call.structured, reading.path)
    except (LookupError, TypeError):
        return False
    value = value if isinstance(value, str) else canonical(value)
    if clock := _CLOCK.search(value):  # of a time, the clock alone is right, and the day alone is not
        return mentions(text, value) or re.search(rf"(?<!\d){clock[0]}(?!\d)", text) is not None
    return mentions(text, value) or _has_figure(text, task, value)


def _has_figure(text: str, task: str, value: str) -> bool:
    """Whether a text has a time, a date or a long number of a value: 14:03 of 2026-11-21T14:03:09+01:00."""
    return any(figure in value for figure in _FIGURES.findall(text) if figure not in task)


def _leaves(call: ToolCall) -> list[Any]:
    """The scalars in the result of a call."""
    return [leaf for _, leaf in leaves(parse_result(call.result or "", call.structured))]


def _resolve_arguments(step: Step, earlier: Sequence[ToolCall | Observation | None]) -> dict[str, Any]:
    """The correct arguments of a step. earlier: what gave the earlier results, in this run or in the reference."""
    return {name: _value(value, earlier) if is_reference(value) else value for name, value in step.arguments.items()}


def _value(reference: dict[str, Any], earlier: Sequence[ToolCall | Observation | None]) -> Any:
    """The value of a reference. If there is none, the reference itself, which no argument is equal to."""
    call = earlier[reference["$step"]]
    if call is None or call.is_error:
        return reference
    try:
        text = call.text if isinstance(call, Observation) else call.result or ""
        return pick_value(text, call.structured, reference["path"])
    except (LookupError, TypeError):
        return reference


def _text(content: Any) -> str:
    """The text of a message's content. Parts without text are left out."""
    if isinstance(content, list):
        content = "".join(part if isinstance(part, str) else str(part.get("text", "")) for part in content)
    return str(content or "").strip()
