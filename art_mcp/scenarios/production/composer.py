"""Composes scenarios: the text of a task, its plan, and a right answer."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence

from art_mcp.scenarios.catalog import Catalog, CatalogTool
from art_mcp.scenarios.drafting.draft import Draft, ExecutedDraft
from art_mcp.scenarios.drafting.drafter import Drafter
from art_mcp.scenarios.lines import mentions
from art_mcp.scenarios.observe import is_nothing
from art_mcp.scenarios.phrasing import answers
from art_mcp.scenarios.phrasing.arguments import spell_value
from art_mcp.scenarios.phrasing.language import SENTENCES
from art_mcp.scenarios.phrasing.phraser import Phraser, Text
from art_mcp.scenarios.phrasing.questions import WEIGHTS, Question
from art_mcp.scenarios.plan import MCPScenario, Observation, Plan, Reading, Split, Step, is_reference

TRIES = 6
"""Attempts to find words for a task that say all values and give no answer away."""

NOTHING = 0.1
"""What is left of the weight of a question whose answer is zero or nothing."""


def difficulty(steps: Sequence[Step], turns: int = 1) -> int:
    """Rates the difficulty of a reference, from 1 to 5.

    One call with at most one argument has difficulty 1. Each further call adds 2. A call with several arguments adds 1,
    a step that takes an earlier result adds 1, and so does an earlier turn.

    Args:
        steps: The calls. Without any the difficulty is 1.
        turns: Requests in the conversation.
    """
    several = any(len(step.arguments) > 1 for step in steps)
    is_chain = any(step.needs for step in steps)
    return max(1, min(5, 2 * len(steps) - 1 + several + is_chain + turns - 1))


class Composer:
    """Composes scenarios of drafts that were executed.

    Args:
        catalog: What the server offers.
        drafter: Has drafted the calls.
        phraser: Puts requests into words.
        rng: Source of randomness.
        unsaid: Parameters whose values need not be in the text, by the name of the tool: those that take SQL.
    """

    def __init__(
        self,
        catalog: Catalog,
        drafter: Drafter,
        phraser: Phraser,
        rng: random.Random,
        unsaid: Mapping[str, str] | None = None,
    ) -> None:
        self._catalog = catalog
        self._drafter = drafter
        self._phraser = phraser
        self._rng = rng
        self._unsaid = dict(unsaid or {})
        self._question_counts: Counter[tuple[str, tuple[str, str, str]]] = Counter()
        self.errands = answers.errands(" ".join(map(_describe_tool, catalog.tools)))

    def task(self, executed_draft: ExecutedDraft, split: Split) -> MCPScenario | None:
        """A task with one call, or with a chain. None: there are no good words for it."""
        for _ in range(TRIES):
            question = self._question(executed_draft)
            if question is None and not executed_draft.acts:
                return None
            call = executed_draft.draft.render_call(self._rng)
            text = self._phraser.request(call, question, held=split == "phrasings")
            if self._says_all(text.text, executed_draft.trial.steps) and self._keeps(text.text, question):
                return self._scenario(text, [executed_draft], [question], split)
        return None

    def pair(self, first: ExecutedDraft, second: ExecutedDraft, split: Split) -> MCPScenario | None:
        """A task with two calls that do not need one another. None: there are no good words for it."""
        if any(not part.acts and not part.questions for part in (first, second)):
            return None
        for _ in range(TRIES):
            questions = [self._question(part) for part in (first, second)]
            calls = [part.draft.render_call(self._rng) for part in (first, second)]
            texts = [
                self._phraser.request(call, question, held=False, dressed=False)
                for call, question in zip(calls, questions, strict=True)
            ]
            text = self._phraser.pair(texts[0], texts[1], held=split == "phrasings")
            hides_answers = all(self._keeps(text.text, question) for question in questions)
            if hides_answers and self._says_all(text.text, [*first.trial.steps, *second.trial.steps]):
                return self._scenario(text, [first, second], questions, split)
        return None

    def follow_up(self, earlier: ExecutedDraft, executed_draft: ExecutedDraft, split: Split) -> MCPScenario | None:
        """A question that refers to an earlier one. None: the two do not ask for the same."""
        common_keys = {question.key for question in earlier.questions} & {
            question.key for question in executed_draft.questions
        }
        if not common_keys:
            return None
        key = self._rng.choice(sorted(common_keys))
        first = next(question for question in earlier.questions if question.key == key)
        second = next(question for question in executed_draft.questions if question.key == key)
        call = earlier.draft.render_call(self._rng)
        request = self._phraser.request(call, first, held=False, dressed=False)
        history = (request.text, answers.answer(first))
        text = self._phraser.again(executed_draft.draft.topic, held=split == "phrasings")
        if not self._says_all(f"{request.text} {text.text}", executed_draft.trial.steps) or not self._keeps(
            text.text, second
        ):
            return None
        if any(mentions(" ".join(history), fact) for fact in second.facts):
            return None
        return self._scenario(text, [executed_draft], [second], split, history=[history])

    def impossible(
        self, executed_draft: ExecutedDraft, like: Sequence[ExecutedDraft], split: Split
    ) -> MCPScenario | None:
        """A task whose call must fail. like: tasks of the same tool that can be done."""
        obstacle = executed_draft.draft.obstacle
        assert obstacle is not None
        value = obstacle.value
        acts = self._drafter.senses[executed_draft.trial.steps[-1].tool].acts
        question = None
        if not acts:
            others = [question for each in like for question in each.questions if question.kind in ("leaf", "value")]
            question = self._rng.choice(others) if others else Question("value", "", "")
        call = executed_draft.draft.render_call(self._rng)
        text = self._phraser.request(call, question, held=split == "phrasings")
        if not self._says_all(text.text, executed_draft.trial.steps) or " of the " in (
            question.head if question else ""
        ):
            return None
        noun, reason = obstacle.noun, executed_draft.errors[0]
        answer = answers.missing(noun, value) if noun else answers.refusal(reason)
        scenario = self._scenario(text, [executed_draft], [None], split)
        about = [value, *([value.rpartition("/")[2]] if "/" in value else [])]
        return scenario.with_plan(kind="impossible", reply="refusal", about=about, answer=answer, facts=[], readings=[])

    def errand(self, split: Split) -> MCPScenario | None:
        """A task for which there is no tool. None: there seems to be a tool for everything that we know."""
        if not self.errands:
            return None
        errand = self._rng.choice(self.errands)
        text = self._phraser.errand(errand.do, held=split == "phrasings")
        return self._without_calls(text, "impossible", list(errand.about), answers.cannot(errand), split)

    def small_talk(self, split: Split, before: MCPScenario | None) -> MCPScenario:
        """A message that needs no tool. before: a task that was done before the thanks."""
        is_held = split == "phrasings"
        family = self._rng.choice(("thanks", "thanks", "greeting", "abilities"))
        text = self._phraser.plain(family, is_held)
        if family == "abilities":
            nouns = sorted({sense.noun for sense in self._drafter.senses.values() if sense.noun})
            return self._without_calls(text, "talk", nouns, answers.able(nouns or ["tools"], self._rng), split)
        reply = self._rng.choice(SENTENCES.answers.welcome if family == "thanks" else SENTENCES.answers.hello)
        history = []
        if family == "thanks" and before is not None and len(before.messages) == 1 and before.plan.answer:
            history = [(before.task, before.plan.answer)]
        return self._without_calls(text, "talk", [], reply, split, history)

    def unexecuted_task(self, draft: Draft) -> MCPScenario | None:
        """A task that was not executed. None: there are no good words for it."""
        for _ in range(TRIES):
            text = self._phraser.request(draft.render_call(self._rng), None, held=False)
            if self._says_all(text.text, draft.steps):
                plan = Plan(
                    server=self._catalog.name,
                    difficulty=difficulty(draft.steps),
                    reference=draft.steps,
                    split="values" if draft.held_values else "train",
                    phrasing=text.form,
                )
                return MCPScenario.make(text.text, plan)
        return None

    def _question(self, executed_draft: ExecutedDraft) -> Question | None:
        """A question about the result of a call: one that was seldom asked of this tool, most of the time."""
        if not executed_draft.questions:
            return None
        tool = executed_draft.trial.steps[-1].tool
        counts = [self._question_counts[tool, question.key] for question in executed_draft.questions]
        weights = [
            WEIGHTS[question.kind] * (NOTHING if is_nothing(question.value) else 1) / (1 + count) ** 2
            for question, count in zip(executed_draft.questions, counts, strict=True)
        ]
        [question] = self._rng.choices(executed_draft.questions, weights)
        self._question_counts[tool, question.key] += 1
        return question

    def _says_all(self, text: str, steps: Sequence[Step]) -> bool:
        """Whether a text says every value that the calls need, exactly."""
        for step in steps:
            for name, value in step.arguments.items():
                implicit = (
                    is_reference(value) or value == step.defaults.get(name) or self._unsaid.get(step.tool) == name
                )
                if not implicit and not all(part in text for part in spell_value(value)):
                    return False
        return True

    def _keeps(self, text: str, question: Question | None) -> bool:
        """Whether a text does not give the answer away."""
        if question is None or question.kind == "contains":
            return True
        return not any(mentions(text, fact) for fact in question.facts)

    def _scenario(
        self,
        text: Text,
        executed_drafts: Sequence[ExecutedDraft],
        questions: Sequence[Question | None],
        split: Split,
        history: Sequence[tuple[str, str]] = (),
    ) -> MCPScenario:
        """The scenario of executed drafts. questions: of each draft."""
        steps = [step for each in executed_drafts for step in each.trial.steps]
        facts: list[str] = []
        readings: list[Reading] = []
        sentences: list[str] = []
        at = 0
        for each, question in zip(executed_drafts, questions, strict=True):
            at += len(each.trial.steps)
            if question is not None:
                facts += question.facts
                sentences.append(answers.answer(question))
                if question.path is not None:
                    readings.append(Reading(step=at - 1, path=list(question.path)))
            elif each.acts:
                sentences.append(answers.SUCCESS)
        apart = len(sentences) == len(steps) == len(text.parts)  # a call, and an answer, for each request
        changes = [each.trial.changes for each in executed_drafts]
        plan = Plan(
            server=self._catalog.name,
            difficulty=difficulty(steps, turns=1 + len(history)),
            kind="follow_up" if history else "pair" if len(executed_drafts) > 1 else executed_drafts[0].draft.kind,
            reference=steps,
            observations=[
                observation
                for each, question in zip(executed_drafts, questions, strict=True)
                for observation in _draft_observations(each, question)
            ],
            facts=list(dict.fromkeys(facts)),
            readings=readings,
            answer=answers.both(sentences[0], sentences[1]) if len(sentences) == 2 else "".join(sentences),
            answers=sentences if apart else [],
            requests=list(text.parts) if apart else [],
            changes=None if None in changes else [change for each in changes for change in each or ()],
            split=split,
            phrasing=text.form,
        )
        return MCPScenario.make(text.text, plan, history)

    def _without_calls(
        self,
        text: Text,
        kind: str,
        about: list[str],
        answer_text: str,
        split: Split,
        history: Sequence[tuple[str, str]] = (),
    ) -> MCPScenario:
        plan = Plan.model_validate(
            {
                "server": self._catalog.name,
                "kind": kind,
                "reply": "refusal" if kind == "impossible" else "talk",
                "about": about,
                "answer": answer_text,
                "split": split,
                "phrasing": text.form,
            }
        )
        return MCPScenario.make(text.text, plan, history)


def _describe_tool(tool: CatalogTool) -> str:
    """All that says what a tool can do, with the names of the values that it gives: some give a temperature, and say in
    their descriptions only that they give data."""
    output = (tool.output_schema or {}).get("properties", {})
    return " ".join([tool.name, tool.title or "", tool.description, *output])


def _draft_observations(executed_draft: ExecutedDraft, question: Question | None) -> list[Observation]:
    """The results of an executed draft, with what the answer to a question needs of them."""
    if question is None:
        return executed_draft.trial.observations()
    last = len(executed_draft.trial.steps) - 1
    if question.kind in ("count", "contains", "last"):  # not told by a part of the result: all of it is looked through
        return executed_draft.trial.observations(readings=[Reading(step=last, path=[])])
    readings = [] if question.path is None else [Reading(step=last, path=list(question.path))]
    return executed_draft.trial.observations(question.facts, readings)
