"""A draft of a task: its calls, and how they are told."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from art_mcp.scenarios.drafting.errors import reason_of
from art_mcp.scenarios.execute import Execution, Trial, resolve_arguments
from art_mcp.scenarios.lines import mentions
from art_mcp.scenarios.observe import is_nothing, parse_result
from art_mcp.scenarios.phrasing.questions import Question
from art_mcp.scenarios.phrasing.wish import Wish
from art_mcp.scenarios.plan import Kind, Split, Step

RenderCall = Callable[[random.Random], Wish]
FindQuestions = Callable[[Any, Any, random.Random], list[Question]]
"""Takes what the last step gave in both executions, as `parse_result` returns it."""


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why a call must fail.

    Args:
        value: The value that the answer must mention.
        noun: What it would be the name of, as it does not exist. Empty: it does, and the server says why it refuses.
    """

    value: str
    noun: str = ""


@dataclass(frozen=True, slots=True)
class Draft:
    """Calls that are not executed yet.

    Args:
        kind: What kind of task it is.
        steps: The calls.
        render_call: Puts the last call into words; each time in other words.
        find_questions: Finds questions about the result of the last call.
        held_values: The held-out values of the arguments.
        topic: What the call is about in words, for a follow-up that names only this: the value of its main argument.
        same: The same for drafts that differ in nothing but the topic.
        obstacle: Why the last call must fail. None: the calls should work.
        call: The last call with the values that its references are known to have. None: they are not known.
        parts: The two drafts of a pair that is executed together, with one call each. Empty: it is no such pair.
    """

    kind: Kind
    steps: list[Step]
    render_call: RenderCall
    find_questions: FindQuestions
    held_values: frozenset[str] = frozenset()
    topic: str = ""
    same: str = ""
    obstacle: Obstacle | None = None
    call: Step | None = None
    parts: tuple[Draft, ...] = ()

    @property
    def tools(self) -> tuple[str, ...]:
        """Names of the tools, each once, in alphabetical order."""
        return tuple(sorted({step.tool for step in self.steps}))


@dataclass(slots=True)
class ExecutedDraft:
    """A draft that was executed.

    Args:
        draft: The draft.
        trial: Its executions.
        questions: What can be asked about the result of its last call.
        task_counts: How many tasks of each set were made of it.
    """

    draft: Draft
    trial: Trial
    questions: list[Question] = field(default_factory=list)
    task_counts: Counter[Split] = field(default_factory=Counter)

    @property
    def acts(self) -> bool:
        """Whether the task is to change something: its last call does not read, and is not made for its result."""
        return not (self.trial.steps[-1].reads or self.trial.steps[-1].by_result)

    @property
    def is_empty(self) -> bool:
        """Whether all that can be asked has zero or nothing as its answer."""
        return bool(self.questions) and all(is_nothing(question.value) for question in self.questions)

    @property
    def length(self) -> int:
        """Characters of all results: what an agent has to read."""
        return sum(len(result.text) for result in self.trial.first.results)

    @property
    def results(self) -> Sequence[Any]:
        """What each call gave in the first execution, as `parse_result` returns it."""
        return [parse_result(result.text, result.structured) for result in self.trial.first.results]

    @property
    def errors(self) -> list[str]:
        """The reason that the last call gave in each execution, as `reason_of` reads it."""
        runs = [run for run in (self.trial.first, self.trial.second) if run is not None]
        return [reason_of(run.results[-1].text) for run in runs]

    @property
    def arguments(self) -> list[Any]:
        """The values of all arguments, with references replaced and lists flattened."""
        run = self.trial.first
        whole = [
            value for at, step in enumerate(run.steps) for value in resolve_arguments(step, run.results[:at]).values()
        ]
        return [item for value in whole for item in (value if isinstance(value, list) else [value])]


def pair_drafts(first: Draft, second: Draft) -> Draft:
    """Two drafts with a call each as one. They are executed together, because one of them changes something."""
    values = first.held_values | second.held_values
    return Draft(
        "pair", [*first.steps, *second.steps], first.render_call, first.find_questions, values, parts=(first, second)
    )


def split_pair(draft: Draft, trial: Trial, rng: random.Random) -> tuple[ExecutedDraft, ExecutedDraft]:
    """The two parts of an executed pair. What was changed is with the first one.

    Args:
        draft: The pair.
        trial: Its executions.
        rng: Source of randomness.
    """

    def slice_of(execution: Execution, at: int) -> Execution:
        return Execution(execution.steps[at : at + 1], execution.results[at : at + 1], execution.changes)

    parts = []
    for at, part in enumerate(draft.parts):
        second = None if trial.second is None else slice_of(trial.second, at)
        changes = trial.changes if at == 0 or trial.changes is None else []
        parts.append(to_executed(part, Trial(slice_of(trial.first, at), second, changes), rng))
    return parts[0], parts[1]


def to_executed(draft: Draft, trial: Trial, rng: random.Random) -> ExecutedDraft:
    """A draft with its trial, and with the questions about what its last call gave: those that no earlier result
    answers, or the last call would not be needed."""
    outcome = ExecutedDraft(draft, trial)
    if trial.second is None or outcome.acts:
        return outcome
    first, second = (
        parse_result(run.results[-1].text, run.results[-1].structured) for run in (trial.first, trial.second)
    )
    earlier = [result.text for result in trial.first.results[:-1]]
    outcome.questions = [
        question
        for question in draft.find_questions(first, second, rng)
        if not any(mentions(text, question.value) for text in earlier)
    ]
    return outcome
