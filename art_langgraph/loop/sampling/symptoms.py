"""What the runs of a dead group have in common: the tool that does not exist, the error, the part of the reward."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from langchain_core.messages import ToolMessage

from art_langgraph.trajectory import Trajectory

Kind = Literal["raised", "unscored", "missing tool", "tool error", "no tool", "silent", "same answer", "judge", "part"]
"""Kinds of symptoms, the most telling first."""
_ORDER: tuple[Kind, ...] = get_args(Kind)
_LONGEST = 160
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
    made = {call.tool_call_id for call in run.tool_calls if call.tool_call_id is not None}
    called = _list_calls(run)
    for call_id, name in called:
        answer = answers.get(call_id, "")
        if name not in reference_runs.tools and (
            _refused(name, answer) or (reference_runs.tools and call_id not in made)
        ):
            yield "missing tool", f"called the tool {name!r}, which does not exist"
        elif answer.startswith("Error") and call_id not in made:
            yield "tool error", f"got an error from the tool {name!r}: {_short(answer)}"
    for call in run.tool_calls:
        if call.is_error and call.tool in reference_runs.tools:
            yield "tool error", f"got an error from the tool {call.tool!r}: {_short(call.result or call.failure or '')}"
    if reference_runs.tools and not called and not run.tool_calls:
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
    said = (
        rf"{tool} is not a valid tool",
        rf"(unknown|no such) tool:? {tool}",
        rf"tool:? {tool} (is |was )?(not found|does not exist)",
    )
    return re.search("|".join(said), answer or "", re.IGNORECASE) is not None


def _list_calls(run: Trajectory) -> list[tuple[str, str]]:
    """Ids and names of the tool calls that the model made, whether a tool ran or not."""
    return [
        (str(call.get("id")), str(call.get("function", {}).get("name")))
        for completion in run.completions
        if completion.superseded is None
        for call in (completion.message or {}).get("tool_calls") or ()
    ]


def _tool_answers(run: Trajectory) -> dict[str, str]:
    """What the model was told of each of its tool calls, by the call's id."""
    answers = defaultdict[str, str](str)
    for completion in run.completions:
        for message in completion.messages:
            if message.get("role") == "tool":
                answers[str(message.get("tool_call_id"))] = str(message.get("content") or "")
    for told in run.messages:
        if isinstance(told, ToolMessage):
            answers[told.tool_call_id] = str(told.text)
    return answers


def _short(text: str) -> str:
    """A text as a single line."""
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"
