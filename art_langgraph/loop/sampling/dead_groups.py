"""The report of dead groups: which scenarios never taught anything, why, and what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal

from langchain_core.messages import HumanMessage

from art_langgraph.loop.sampling.informative import informative
from art_langgraph.loop.sampling.symptoms import Kind, ReferenceRuns, Symptom, symptoms_of
from art_langgraph.messages import messages_of
from art_langgraph.trajectory import Scenario, Trajectory, TrajectoryGroup

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
_SHOWN = 3
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
        told = f": {self.symptoms[0].text}" if self.symptoms else ""
        level = f" ({self.reward:g})" if self.why == "equal" and self.reward is not None else ""
        return f"{_WORDS[self.why]}{level}{told}"

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
                    "symptoms": [
                        {"kind": symptom.kind, "text": symptom.text, "runs": symptom.runs} for symptom in dead.symptoms
                    ],
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
            for (cause, remedy), alike in causes[:_SHOWN]:
                runs = sum(dead.runs for dead in alike)
                examples = ", ".join(f"{dead.scenario.id} {_question(dead.scenario)!r}" for dead in alike[:_SHOWN])
                more = f", and {len(alike) - _SHOWN} more" if len(alike) > _SHOWN else ""
                lines.append(f"- {len(alike)} × {cause} ({runs} runs): {examples}{more}")
                lines.append(f"  What to do: {remedy}.")
            if rest := [dead for _, alike in causes[_SHOWN:] for dead in alike]:
                lines.append(f"- {len(rest)} × {_WORDS[rest[0].why]}, for {len(causes) - _SHOWN} other causes")
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
    known = ReferenceRuns.of(runs)
    rewards = [reward for group in every if group.judgements <= {None} for reward in _rewards(group.trajectories)]
    bounds = (min(rewards), max(rewards)) if len(set(rewards)) > 1 else (0.0, 1.0)
    alive = {id(group) for group in every if informative(group)}
    never = [
        _dead_scenario(same_scenario, known, bounds, success)
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
    grouped: dict[tuple[int, str], TrajectoryGroup] = {}
    for run in sorted(runs, key=lambda run: run.started):
        if (versions := run.versions.get(policy)) and not run.untrained:
            key = versions[-1], run.scenario.id
            grouped.setdefault(key, TrajectoryGroup(scenario=run.scenario)).trajectories.append(run)
    return list(grouped.values())


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
        solved = sum(success(run) for run in runs if run.reward is not None)
        return "solved" if solved == len(rewards) else "equal" if solved else "failed"
    low, high = bounds
    return "solved" if rewards[0] >= high else "failed" if rewards[0] <= low else "equal"


def _rewards(runs: Iterable[Trajectory]) -> list[float]:
    return [run.reward for run in runs if run.reward is not None]


def _question(scenario: Scenario) -> str:
    """What the graph was asked, as a single line."""
    asked = [message for message in messages_of(scenario.input) if isinstance(message, HumanMessage)]
    line = " ".join(str(asked[-1].text if asked else scenario.input).split())
    return line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"
