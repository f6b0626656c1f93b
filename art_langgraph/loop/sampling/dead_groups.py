"""The report of dead groups: which scenarios never taught anything, what their runs have in common, what to do."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any, Literal, get_args

from langchain_core.messages import HumanMessage, ToolMessage

from art_langgraph.loop.sampling.informative import informative
from art_langgraph.messages import messages_of
from art_langgraph.trajectory import Scenario, Trajectory, TrajectoryGroup

Kind = Literal["raised", "unscored", "missing tool", "tool error", "no tool", "silent", "same answer", "judge", "part"]
"""Kinds of symptoms, the most telling first."""
_ORDER: tuple[Kind, ...] = get_args(Kind)
_SYMPTOM_LENGTH = 160
"""Characters of a text in a symptom."""


@dataclass(frozen=True, slots=True)
class Symptom:
    """What several runs of a scenario have in common.

    Args:
        kind: Its kind.
        text: In words: "called the tool 'lookup', which does not exist".
        runs: How many runs have it.
    """

    kind: Kind
    text: str
    runs: int


@dataclass(frozen=True, slots=True)
class ReferenceRuns:
    """What other runs show: which tools there are, and how good each part of the reward can be.

    Args:
        tools: Tools that ran for a call, whatever they answered.
        best: The highest value of each part of the reward.
    """

    tools: frozenset[str]
    best: dict[str, float]

    @classmethod
    def of(cls, runs: Iterable[Trajectory]) -> ReferenceRuns:
        """What these runs show."""
        tools, best = set[str](), dict[str, float]()
        for run in runs:
            tools |= {call.tool for call in run.tool_calls if not _refused(call.tool, call.result)}
            for name, value in run.metrics.items():
                best[name] = max(value, best.get(name, value))
        return cls(frozenset(tools), best)


def symptoms_of(runs: Sequence[Trajectory], reference_runs: ReferenceRuns) -> list[Symptom]:
    """What at least half of some runs have in common, the commonest first, and the most telling of these.

    Args:
        runs: The runs of a scenario.
        reference_runs: What all runs show.
    """
    counts = Counter[tuple[Kind, str]]()
    for run in runs:
        counts.update(dict.fromkeys(_of_run(run, reference_runs), 1))
    answers = Counter(run.final_text for run in runs if run.final_text)
    if len(runs) > 1 and answers and (same := answers.most_common(1)[0])[1] == len(runs):
        counts["same answer", f"said the same: {_short(same[0])!r}"] = len(runs)
    common = [Symptom(kind, text, count) for (kind, text), count in counts.items() if 2 * count >= len(runs)]
    return sorted(common, key=lambda symptom: (-symptom.runs, _ORDER.index(symptom.kind), symptom.text))


def _of_run(run: Trajectory, reference_runs: ReferenceRuns) -> Iterator[tuple[Kind, str]]:
    if run.error is not None:
        yield "raised", f"raised {_short(run.error)}"
    if not run.scored:
        yield "unscored", f"had no reward: {_short(run.reward_error or 'no reward function scored it')}"
    answers = _tool_answers(run)
    executed_ids = {call.tool_call_id for call in run.tool_calls if call.tool_call_id is not None}
    calls = _list_calls(run)
    for call_id, name in calls:
        answer = answers.get(call_id, "")
        if name not in reference_runs.tools and (
            _refused(name, answer) or (reference_runs.tools and call_id not in executed_ids)
        ):
            yield "missing tool", f"called the tool {name!r}, which does not exist"
        elif answer.startswith("Error") and call_id not in executed_ids:
            yield "tool error", f"got an error from the tool {name!r}: {_short(answer)}"
    for call in run.tool_calls:
        if call.is_error and call.tool in reference_runs.tools:
            yield "tool error", f"got an error from the tool {call.tool!r}: {_short(call.result or call.failure or '')}"
    if reference_runs.tools and not calls and not run.tool_calls:
        yield "no tool", "called no tool"
    if run.error is None and not run.final_text:
        yield "silent", "ended without an answer"
    if run.reward_reason:
        yield "judge", f"were judged: {_short(run.reward_reason)!r}"
    for name, value in run.metrics.items():
        if value < reference_runs.best[name] or value <= 0:
            yield "part", f"got {value:g} for the part {name!r} of the reward"


def _refused(name: str, answer: str | None) -> bool:
    """Whether an answer says that there is no such tool, in the words of LangGraph's ToolNode and of MCP servers."""
    tool = rf"[\"'`]?{re.escape(name)}[\"'`]?"
    patterns = (
        rf"{tool} is not a valid tool",
        rf"(unknown|no such) tool:? {tool}",
        rf"tool:? {tool} (is |was )?(not found|does not exist)",
    )
    return re.search("|".join(patterns), answer or "", re.IGNORECASE) is not None


def _list_calls(run: Trajectory) -> list[tuple[str, str]]:
    """Ids and names of the tool calls that the model made, whether a tool ran or not."""
    return [
        (str(call.get("id")), str(call.get("function", {}).get("name")))
        for completion in run.completions
        if completion.superseded is None
        for call in (completion.message or {}).get("tool_calls") or ()
    ]


def _tool_answers(run: Trajectory) -> dict[str, str]:
    """The answer to each tool call of the model, by the id of the call; empty where there is none."""
    answers = defaultdict[str, str](str)
    for completion in run.completions:
        for message in completion.messages:
            if message.get("role") == "tool":
                answers[str(message.get("tool_call_id"))] = str(message.get("content") or "")
    for tool_message in run.messages:
        if isinstance(tool_message, ToolMessage):
            answers[tool_message.tool_call_id] = str(tool_message.text)
    return answers


def _short(text: str) -> str:
    """A text as a single line."""
    line = " ".join(text.split())
    return line if len(line) <= _SYMPTOM_LENGTH else line[: _SYMPTOM_LENGTH - 1] + "…"


Why = Literal["raised", "unscored", "failed", "equal", "solved"]
"""Why the groups of a scenario are dead: all runs of the last one raised, have no reward, failed, got the same reward
between failure and success, or succeeded."""
_WORDS: dict[Why, str] = {
    "raised": "all runs raised",
    "unscored": "no run has a reward",
    "failed": "all runs failed",
    "equal": "all runs got the same reward",
    "solved": "all runs succeeded",
}
_REMEDIES: dict[Why, str] = {
    "raised": "mend what raises in the graph, or raise its limits (timeout, recursion limit)",
    "unscored": "mend the reward function or the judge: runs without a reward are never trained on",
    "failed": "more runs at a higher temperature (explore=Exploration()), a hint that the policy will not have later "
    "(hints=…), a warm start from demonstrations (art-langgraph sft), or easier scenarios first",
    "equal": "a reward with more levels, such as named parts, so that better runs get more",
    "solved": "drop it from training, it is solved; keep it among the held-out scenarios",
}
_BY_SYMPTOM: dict[Kind, str] = {
    "missing tool": "tell the policy the names of the tools: in the prompt, by a hint (hints=…), or by a warm start "
    "from demonstrations (art-langgraph sft)",
    "tool error": "show the policy a call that works: by a hint (hints=…) or a warm start (art-langgraph sft); and "
    "let the tool's error say what was wrong",
    "no tool": "begin with a warm start from demonstrations of the tools (art-langgraph sft), or with a hint (hints=…)",
    "same answer": "let the policy try other things: a higher temperature (explore=Exploration())",
}
"""What helps where failed runs have a symptom in common."""
_EXAMPLES = 3
"""Examples of each cause, and causes of each kind, in the text."""
_LONGEST = 80
"""Characters of an example."""


@dataclass(frozen=True, slots=True)
class DeadScenario:
    """A scenario none of whose groups taught anything.

    Args:
        scenario: The scenario.
        groups: How many groups it had.
        runs: How many runs, of all groups.
        reward: The reward that all scored runs of the last group got; None where none has one.
        why: Why its last group was dead.
        symptoms: What the runs of the last group have in common, the commonest first; none for solved scenarios.
    """

    scenario: Scenario
    groups: int
    runs: int
    reward: float | None
    why: Why
    symptoms: tuple[Symptom, ...] = ()

    @property
    def cause(self) -> str:
        """Why its groups are dead, in words, with the commonest symptom."""
        symptom = f": {self.symptoms[0].text}" if self.symptoms else ""
        level = f" ({self.reward:g})" if self.why == "equal" and self.reward is not None else ""
        return f"{_WORDS[self.why]}{level}{symptom}"

    @property
    def remedy(self) -> str:
        """What to do."""
        if self.why in ("failed", "equal"):
            for symptom in self.symptoms:
                if symptom.kind in _BY_SYMPTOM:
                    return _BY_SYMPTOM[symptom.kind]
        return _REMEDIES[self.why]


@dataclass(frozen=True, slots=True)
class DeadGroups:
    """Which scenarios never taught anything: `print(dead_groups(groups))`.

    Args:
        scenarios: Those that never did; failures first, the solved last.
        tried: How many scenarios had a group.
        groups: How many groups there were.
        dead: How many of them taught nothing.
    """

    scenarios: list[DeadScenario]
    tried: int
    groups: int
    dead: int

    def summary(self) -> dict[str, Any]:
        """The report as JSON."""
        return {
            "groups": self.groups,
            "dead": self.dead,
            "tried": self.tried,
            "scenarios": [
                {
                    "id": dead.scenario.id,
                    "question": _question(dead.scenario),
                    "groups": dead.groups,
                    "runs": dead.runs,
                    "reward": dead.reward,
                    "why": dead.why,
                    "cause": dead.cause,
                    "symptoms": list(map(asdict, dead.symptoms)),
                    "remedy": dead.remedy,
                }
                for dead in self.scenarios
            ],
        }

    def __str__(self) -> str:
        head = f"{self.dead} of {self.groups} groups taught nothing"
        if not self.scenarios:
            return f"{head}; each of {self.tried} scenarios taught something at least once"
        lines = [f"{head}; {len(self.scenarios)} of {self.tried} scenarios never taught anything:"]
        for _, kind in groupby(self.scenarios, key=lambda dead: dead.why):
            by_cause: dict[tuple[str, str], list[DeadScenario]] = {}
            for dead in kind:
                by_cause.setdefault((dead.cause, dead.remedy), []).append(dead)
            causes = sorted(by_cause.items(), key=lambda item: -len(item[1]))
            for (cause, remedy), alike in causes[:_EXAMPLES]:
                runs = sum(dead.runs for dead in alike)
                examples = ", ".join(f"{dead.scenario.id} {_question(dead.scenario)!r}" for dead in alike[:_EXAMPLES])
                more = f", and {len(alike) - _EXAMPLES} more" if len(alike) > _EXAMPLES else ""
                lines.append(f"- {len(alike)} × {cause} ({runs} runs): {examples}{more}")
                lines.append(f"  What to do: {remedy}.")
            if rest := [dead for _, alike in causes[_EXAMPLES:] for dead in alike]:
                lines.append(f"- {len(rest)} × {_WORDS[rest[0].why]}, for {len(causes) - _EXAMPLES} other causes")
        return "\n".join(lines)


def dead_groups(
    groups: Iterable[TrajectoryGroup], *, success: Callable[[Trajectory], bool] | None = None
) -> DeadGroups:
    """Finds the scenarios that never taught anything, and why.

    Of a training: `dead_groups(group for record in records for group in record.groups)`. Of a store:
    `dead_groups(groups_by_version(store, "agent"))`.

    Args:
        groups: Groups in the order in which they were made. A scenario may have several.
        success: Whether a scored run solved its scenario. None: by the rewards that were seen. The highest of all is
            success and the lowest failure; where all are equal, a reward of 1 or more is success, of 0 or less failure.
    """
    by_scenario: dict[str, list[TrajectoryGroup]] = {}
    for group in groups:
        if group.trajectories:
            by_scenario.setdefault(group.scenario.id, []).append(group)
    every = [group for same_scenario in by_scenario.values() for group in same_scenario]
    runs = [run for group in every for run in group.trajectories]
    reference_runs = ReferenceRuns.of(runs)
    rewards = [reward for group in every if group.judgements <= {None} for reward in _rewards(group.trajectories)]
    bounds = (min(rewards), max(rewards)) if len(set(rewards)) > 1 else (0.0, 1.0)
    alive = {id(group) for group in every if informative(group)}
    never = [
        _dead_scenario(same_scenario, reference_runs, bounds, success)
        for same_scenario in by_scenario.values()
        if not any(id(group) in alive for group in same_scenario)
    ]
    order: tuple[Why, ...] = ("raised", "unscored", "failed", "equal", "solved")
    never.sort(key=lambda dead: order.index(dead.why))
    return DeadGroups(never, len(by_scenario), len(every), len(every) - len(alive))


def groups_by_version(runs: Iterable[Trajectory], policy: str) -> list[TrajectoryGroup]:
    """Stored runs as the groups that steps compared: the runs of a scenario that one version sampled, oldest first.

    Args:
        runs: Runs in any order. Those that no step trains (evaluations, runs with hints, imported ones), or in which
            `policy` did not answer, are left out.
        policy: Name of the policy.
    """
    by_key: dict[tuple[int, str], TrajectoryGroup] = {}
    for run in sorted(runs, key=lambda run: run.started):
        if (versions := run.versions.get(policy)) and not run.untrained:
            key = versions[-1], run.scenario.id
            by_key.setdefault(key, TrajectoryGroup(scenario=run.scenario)).trajectories.append(run)
    return list(by_key.values())


def _dead_scenario(
    groups: Sequence[TrajectoryGroup],
    reference_runs: ReferenceRuns,
    bounds: tuple[float, float],
    success: Callable[[Trajectory], bool] | None,
) -> DeadScenario:
    last = groups[-1]
    why = _why(last.trajectories, bounds, success)
    return DeadScenario(
        last.scenario,
        len(groups),
        sum(len(group.trajectories) for group in groups),
        next(iter(_rewards(last.trajectories)), None),
        why,
        () if why == "solved" else tuple(symptoms_of(last.trajectories, reference_runs)),
    )


def _why(
    runs: Sequence[Trajectory],
    bounds: tuple[float, float],
    success: Callable[[Trajectory], bool] | None,
) -> Why:
    if all(run.error is not None for run in runs):
        return "raised"
    if not (rewards := _rewards(runs)):
        return "unscored"
    if success is not None:
        successes = sum(success(run) for run in runs if run.reward is not None)
        return "solved" if successes == len(rewards) else "equal" if successes else "failed"
    low, high = bounds
    return "solved" if rewards[0] >= high else "failed" if rewards[0] <= low else "equal"


def _rewards(runs: Iterable[Trajectory]) -> list[float]:
    return [run.reward for run in runs if run.reward is not None]


def _question(scenario: Scenario) -> str:
    """What the graph was asked, as a single line."""
    questions = [message for message in messages_of(scenario.input) if isinstance(message, HumanMessage)]
    line = " ".join(str(questions[-1].text if questions else scenario.input).split())
    return line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"
