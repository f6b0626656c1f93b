"""Why runs failed, in words, and what a user can do about it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from art_langgraph.trajectory import ToolCall, Trajectory
from art_mcp.client.in_world import WORLD_KEY
from art_mcp.scenarios.phrasing.answers import refuses
from art_mcp.scenarios.plan import MCPScenario, Plan
from art_mcp.specialization.calls import MadeCall, Schema, made_calls
from art_mcp.specialization.specialization import Specialization
from art_mcp.specialization.verify import EXTRA_CALLS, answer, match

Kind = Literal[
    "raised",
    "unscored",
    "unreadable call",
    "refused",
    "no call",
    "needless call",
    "unknown tool",
    "wrong tool",
    "missing call",
    "argument name",
    "tool error",
    "argument value",
    "too many calls",
    "world",
    "no answer",
    "claimed",
    "missing fact",
    "other",
]
"""Kinds of failures, in the order in which they are looked for."""

WORDS: dict[Kind, str] = {
    "raised": "the run raised an error or ran out of time",
    "unscored": "the run has no reward",
    "unreadable call": "wrote a call that cannot be read",
    "refused": "said that it cannot be done, although it can",
    "no call": "called no tool",
    "needless call": "called a tool although none was needed",
    "unknown tool": "called a tool that does not exist",
    "wrong tool": "called another tool than the task needs",
    "missing call": "left out a call that the task needs",
    "argument name": "gave an argument that the tool does not have, or left out one that it needs",
    "tool error": "the tool answered with an error",
    "argument value": "gave an argument another value",
    "too many calls": f"made more than {EXTRA_CALLS} calls beyond those that the task needs",
    "world": "changed what it should not, or did not change what it should",
    "no answer": "ended without an answer: cut by the limit of tokens, or still calling tools",
    "claimed": "answered although it cannot be done",
    "missing fact": "the answer lacks a fact",
    "other": "failed otherwise",
}

_CALL_TEXT = re.compile(r"</?tool_call|\"(name|arguments)\"\s*:")
"""What is left in the text of an answer where a parser found no call in it."""
_LONGEST = 300
"""Characters of a text in an example."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a run did not solve its scenario.

    Args:
        kind: The first thing that went wrong.
        detail: What it was: the call, the error, the fact.
        run: The run.
    """

    kind: Kind
    detail: str
    run: Trajectory

    @property
    def task(self) -> str:
        """The task of the run."""
        return MCPScenario.of_scenario(self.run.scenario).task


@dataclass(frozen=True, slots=True)
class Cluster:
    """All failures of a kind.

    Args:
        kind: The kind.
        failures: The failures.
        runs: How many runs were measured, solved ones included.
    """

    kind: Kind
    failures: list[Failure]
    runs: int

    @property
    def words(self) -> str:
        """The kind in words."""
        return WORDS[self.kind]

    @property
    def example(self) -> Failure:
        """One of the failures."""
        return self.failures[0]


def clusters(runs: Iterable[Trajectory], solved_ids: Iterable[str], schemas: Mapping[str, Schema]) -> list[Cluster]:
    """The failures by kind, the most frequent first.

    Args:
        runs: The runs of a measurement.
        solved_ids: Ids of those that solved their scenario.
        schemas: The schemas of the agent's tools, by name.
    """
    runs, solved_set = list(runs), set(solved_ids)
    by_kind: dict[Kind, list[Failure]] = {}
    for run in runs:
        if run.id not in solved_set:
            failure = failure_of(run, schemas)
            by_kind.setdefault(failure.kind, []).append(failure)
    kinds = [Cluster(kind, failures, len(runs)) for kind, failures in by_kind.items()]
    return sorted(kinds, key=lambda cluster: (-len(cluster.failures), list(WORDS).index(cluster.kind)))


def failure_of(run: Trajectory, schemas: Mapping[str, Schema]) -> Failure:
    """The first thing that went wrong in a run that did not solve its scenario.

    Args:
        run: The run.
        schemas: The schemas of the agent's tools, by name.
    """
    kind, detail = _reason(run, schemas)
    return Failure(kind, _short(detail), run)


def _reason(run: Trajectory, schemas: Mapping[str, Schema]) -> tuple[Kind, str]:
    plan = MCPScenario.of_scenario(run.scenario).plan
    calls, server_calls = made_calls(run), [call for call in run.tool_calls if call.server is not None]
    text = answer(run)
    if run.error is not None:
        return "raised", run.error
    if run.reward is None:
        return "unscored", run.reward_error or "no reward function scored it"
    if unreadable := next((call for call in calls if call.arguments is None), None):
        return "unreadable call", str(unreadable)
    if not calls and not server_calls and _CALL_TEXT.search(text):
        return "unreadable call", text
    if plan.reply != "result":
        return _of_reply(plan, calls, text) if not _differences(run) else ("world", _differences(run)[0])
    if not calls and not server_calls:
        return ("refused" if refuses(text) else "no call"), text or "no text"
    return _of_calls(run, plan, calls, server_calls, schemas) or _of_answer(plan, calls, text)


def _of_reply(plan: Plan, calls: Sequence[MadeCall], answer_text: str) -> tuple[Kind, str]:
    """What is wrong with the answer to a task that cannot be done, or that needs no tool."""
    if calls and not plan.reference:
        return "needless call", str(calls[0])
    if not answer_text:
        return "no answer", f"still calling {calls[-1]}" if calls else "no text"
    if plan.reply == "refusal" and not refuses(answer_text):
        return "claimed", answer_text
    return "missing fact", f"{answer_text} (expected: {', '.join(plan.about) or 'nothing in particular'})"


def _of_calls(
    run: Trajectory,
    plan: Plan,
    calls: Sequence[MadeCall],
    server_calls: Sequence[ToolCall],
    schemas: Mapping[str, Schema],
) -> tuple[Kind, str] | None:
    """What is wrong with the calls of a run. None: nothing."""
    if unknown := next((call for call in calls if schemas and call.tool not in schemas), None):
        return "unknown tool", str(unknown)
    matches = match(plan.reference, server_calls, plan.observations)
    pairs = list(zip(plan.reference, matches, strict=True))
    if not any(call for call, _ in matches):
        call_text, names = str(calls[0]) if calls else server_calls[0].tool, {step.tool for step in plan.reference}
        return "wrong tool", f"{call_text}, and not {', '.join(sorted(names))}"
    if missing := [step.tool for step, (call, _) in pairs if call is None]:
        return "missing call", ", ".join(missing)
    for call, degree in matches:
        problems = schemas[call.tool].problems(call.arguments) if call and call.tool in schemas else []
        if degree < 1 and problems:
            return "argument name", problems[0]
    for step, (call, degree) in pairs:
        if call and call.is_error:
            return "tool error", f"{call.tool}: {call.result}"
        if call and degree < 1:
            return "argument value", f"{call.tool}({call.arguments}), and not {step.arguments}"
    if len(server_calls) > len(matches) + EXTRA_CALLS:
        return "too many calls", f"{len(server_calls)} calls for {len(matches)}"
    return ("world", _differences(run)[0]) if _differences(run) else None


def _of_answer(plan: Plan, calls: Sequence[MadeCall], answer_text: str) -> tuple[Kind, str]:
    """What is wrong with the answer of a run whose calls are right."""
    if not answer_text:
        return "no answer", f"still calling {calls[-1]}" if calls else "no text"
    if plan.asks:
        return "missing fact", f"{answer_text} (expected: {', '.join(plan.facts) or 'a value of the results'})"
    return "other", answer_text


def _differences(run: Trajectory) -> list[str]:
    """What the run left otherwise in its world than it should."""
    return [str(difference) for difference in (run.metadata.get(WORLD_KEY) or {}).get("differences") or ()]


def _short(text: str) -> str:
    line = " ".join(str(text).split())
    return line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"


REMEDIES: dict[Kind, str] = {
    "raised": "Read the error: a run that runs out of time needs a longer `timeout`, a prompt over the context needs "
    "fewer tools (`--graph`) or a model with a longer context.",
    "unscored": "The server had ended or gave no answer in these runs. See its output, and try --isolation session.",
    "unreadable call": "The model does not write calls in the form that the engine reads. Give more demonstrations "
    "(more --minutes), or check the tool parser of `serve`.",
    "refused": "The model gives up too early. Fewer tasks that cannot be done, or more demonstrations of those that "
    "can, help; so do more training steps.",
    "no call": "The model answers without the tools. The warm start was too short: give more --minutes, or a system "
    "prompt that asks for calls.",
    "needless call": "The model calls tools for everything. More demonstrations that need no tool help.",
    "unknown tool": "The model makes up names of tools. Give more --minutes to the warm start.",
    "wrong tool": "The model mixes tools up. Give the server's tools descriptions that tell them apart, generate tasks "
    "with --model so that wordings differ more, or train for longer.",
    "missing call": "The model stops after the first call. Generate more tasks of several calls (--difficulty 3 5), or "
    "train for longer.",
    "argument name": "The model does not know the arguments yet: more demonstrations (more --minutes) teach them.",
    "tool error": "The server refuses the calls. See the example; where the error does not say what would be right, a "
    "better error of the server helps the model as well.",
    "argument value": "The model copies values wrongly. Give more values with --resource, so that it learns to copy "
    "instead of remembering, or take a larger model.",
    "too many calls": "The model tries tools until one fits. More training steps make it surer.",
    "world": "The model does more or less than it was asked. See the differences in the examples; more training steps "
    "help, as the reward counts each change.",
    "no answer": "Answers are cut or never come. Raise --max-tokens if results are long; else give more --minutes.",
    "claimed": "The model makes up an answer where the right one is that it cannot be done. More such tasks help.",
    "missing fact": "The calls are right, but the answer does not say what they gave. Raise --max-tokens if it is cut; "
    "else more training steps help, as the reward counts the facts.",
    "other": "Read the examples of these runs.",
}
"""What helps against each kind of failure."""

_NEARLY_ALL, _ENOUGH = 0.95, 0.8
_FEW = 40
"""Scenarios of the headline below which intervals are wide."""
_ENOUGH_SCENARIOS = 10
"""Scenarios of a set below which it is not compared with others."""
_GAP = 0.2
"""How far a set must be behind another one to be worth a remark."""


def advice(outcome: Specialization, failures: Sequence[Cluster]) -> list[str]:
    """What to do next, the most important first.

    Args:
        outcome: The specialization, as far as it is.
        failures: The failures of its last measurement, the most frequent kind first.
    """
    return list(_advice(outcome, failures))


def _advice(outcome: Specialization, failures: Sequence[Cluster]) -> Iterator[str]:
    last = list(outcome.measurements.values())[-1] if outcome.measurements else None
    if last is None or last.headline is None:
        return
    rates, sets = last.rates(), last.sets
    if failures and last.headline < _NEARLY_ALL:
        most = failures[0]
        share = f"{len(most.failures)} of {most.runs} runs"
        yield f"The most frequent failure ({share}): {most.words}. {REMEDIES[most.kind]}"
    if not failures:
        yield "Every held-out task was solved: try harder ones (--difficulty 3 5, or --model to write them)."
    rates = {
        name: rate for name, rate in rates.items() if name not in sets or sets[name].scenarios >= _ENOUGH_SCENARIOS
    }
    combinations, headline = rates.get("combinations"), last.headline
    if combinations is not None and combinations < headline - _GAP:
        yield (
            f"New combinations of tools ({combinations:.2f}) are behind the rest ({headline:.2f}): train on more tasks "
            "of several calls (--difficulty 3 5, more scenarios)."
        )
    values, phrasings = rates.get("values"), rates.get("phrasings")
    if values is not None and phrasings is not None and phrasings < values - _GAP:
        yield "New wordings are behind new values: let a language model write or rewrite tasks (--model, --paraphrase)."
    if values is not None and phrasings is not None and values < phrasings - _GAP:
        yield "New values are behind new wordings: give more values for arguments (--resource)."
    if "after" in outcome.measurements:
        yield from _of_training(outcome)
    if last.on_headline.scenarios < _FEW:
        yield (
            f"Only {last.on_headline.scenarios} held-out scenarios were measured, so that the intervals are wide: give "
            "more --minutes, or more values with --resource."
        )
    if "after" in outcome.measurements and last.headline < _ENOUGH:
        yield (
            f"{outcome.base_model} may be too small for this server. On a GPU, serve a larger model "
            "(`art-langgraph serve --model Qwen/Qwen3-0.6B`), and give the same command another --output."
        )


def _of_training(outcome: Specialization) -> Iterator[str]:
    """What the steps of the training say."""
    gain, with_prompt, after = outcome.gain, outcome.measurements.get("prompted"), outcome.measurements["after"]
    if with_prompt and (with_prompt.headline or 0.0) >= (after.headline or 0.0) > 0:
        yield "Three demonstrations in the prompt are as good as this training: use them, or train for longer."
    if not outcome.steps:
        return
    if gain is not None and gain.better < gain.worse and gain.p < 0.05:
        yield "Reinforcement learning made it worse: lower the learning rate (--lr), or stop after the warm start."
    elif gain is not None and not gain.significant:
        rewards = [reward for _, reward in outcome.rewards]
        if rewards and rewards[0] > 0.9:
            yield "Reinforcement learning had little left to teach: the warm start had solved the training tasks."
        elif rewards and max(rewards[-3:]) > rewards[0] + 0.05:
            yield "The reward of the training was still rising: more --minutes or more --steps will gain more."
        else:
            yield "Reinforcement learning gained nothing beyond chance: try more runs of each scenario (--n 16)."
