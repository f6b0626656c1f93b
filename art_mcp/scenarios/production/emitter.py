"""Makes scenarios of executed drafts, by turns for all tools, until a part of each quota is there."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TypeVar

from art_mcp.scenarios.drafting.draft import ExecutedDraft
from art_mcp.scenarios.plan import Kind, MCPScenario, Split
from art_mcp.scenarios.production.composer import Composer
from art_mcp.scenarios.production.pool import Pool
from art_mcp.scenarios.production.quotas import SHARES, TRAINING_SHARES, ScenarioQuota

MAX_TASKS = 6
"""Tasks of a set that are made of the same calls, at most."""

MAX_BARE_TASKS = 40
"""The same for training, where a tool has few calls."""

LONG = 800
"""Characters of results that are long to read: a small model gets lost in them, and they cost training most."""

LONG_SHARE = 0.1
"""How often a task with long results is made of a tool that gives short ones too."""

MISSES = 25
"""Attempts in a row that may give no new task before a quota is given up."""

CALL_SHARE = 0.6
"""How often a task that cannot be done has a call that must fail. The others are those for which there is no tool."""

_SETS: tuple[Split, ...] = ("train", "values", "phrasings")

Make = Callable[[Split], MCPScenario | None]
_Source = TypeVar("_Source", ExecutedDraft, tuple[ExecutedDraft, ExecutedDraft])


class Emitter:
    """Makes scenarios.

    Args:
        pool: The executed drafts.
        composer: Puts them into words.
        quota: Keeps what is made, and knows what is wanted.
        rng: Source of randomness.
    """

    def __init__(self, pool: Pool, composer: Composer, quota: ScenarioQuota, rng: random.Random) -> None:
        self._pool = pool
        self._composer = composer
        self._kept = quota
        self._rng = rng

    @property
    def full(self) -> bool:
        """Whether all is there that is wanted."""
        return len(self._kept.scenarios) >= self._kept.total

    def singles(self, part: float) -> None:
        """Makes tasks with one call. part: how much of the quota is wanted by now.

        In a small set their share is larger than in a large one: training has a task with each tool alone.
        """
        every = len(self._pool.singles) / max(self._kept.training_size, 1)
        for split in _SETS:
            share = min(max(TRAINING_SHARES["single"], every), SHARES["single"]) if split == "train" else None
            self._fill(split, "single", self._single, part, share)

    def all(self, part: float) -> None:
        """Makes tasks of all kinds: single calls first, then pairs, then chains."""
        self.singles(part)
        if not self._kept.size("train"):
            return  # small talk alone specializes to no server
        for split in _SETS:
            self._fill(split, "pair", self._pair, part)
            self._fill(split, "chain", self._chain, part)
            self._fill(split, "follow_up", self._follow_up, part)
            self._fill(split, "impossible", self._impossible, part)
            self._fill(split, "talk", self._small_talk, part)
        self._fill("combinations", "chain", self._chain, part, share=0.5)
        self._fill("combinations", "pair", self._pair, part, share=0.5 if part < 1 else 1.0)
        if part < 1:
            return
        self._fill("combinations", "chain", self._chain, part, share=1.0)
        self._kept.give_up()
        for split in _SETS:  # where some kinds cannot be made, there are more of the others
            self._fill(split, "single", self._single, part, share=0.8)
            self._fill(split, "chain", self._chain, part, share=0.4)
            self._fill(split, "pair", self._pair, part, share=0.4)
            self._fill(split, "single", self._single, part, share=1.0)

    def _fill(self, split: Split, kind: Kind, make: Make, part: float, share: float | None = None) -> None:
        misses = 0
        while misses < MISSES and self._kept.shortfall(split, kind, share, part):
            misses = 0 if self._kept.add(make(split)) else misses + 1

    def _fitting(self, executed_drafts: Sequence[ExecutedDraft], split: Split) -> list[ExecutedDraft]:
        """The drafts of which a task of a set can be made."""
        return [
            draft
            for draft in executed_drafts
            if split == "combinations" or bool(draft.draft.held_values) is (split == "values")
        ]

    def _rarest(self, keys: Sequence[tuple[str, ...]], split: Split, kind: Kind) -> list[tuple[str, ...]]:
        """Tools, those first of which there are the fewest tasks."""
        order = self._rng.sample(list(keys), len(keys))
        return sorted(order, key=lambda tools: self._kept.tools_count(split, kind, tuple(sorted(set(tools)))))

    def _least_told(self, executed_drafts: Sequence[ExecutedDraft], split: Split) -> ExecutedDraft | None:
        """The draft of which the fewest tasks of a set were made, most of the time one with short results."""
        most = MAX_BARE_TASKS if split == "train" and len(executed_drafts) < MAX_TASKS else MAX_TASKS
        able: Sequence[ExecutedDraft] = [draft for draft in executed_drafts if draft.task_counts[split] < most]
        if not able:
            return None
        return self._by_turns(self._shortest(able), split, lambda draft: draft)

    def _by_turns(self, able: Sequence[_Source], split: Split, counter: Callable[[_Source], ExecutedDraft]) -> _Source:
        """One of those of which the fewest tasks of a set were made. counter: the draft that counts its tasks."""
        least = min(counter(each).task_counts[split] for each in able)
        choice = self._rng.choice([each for each in able if counter(each).task_counts[split] == least])
        counter(choice).task_counts[split] += 1
        return choice

    def _shortest(self, executed_drafts: Sequence[ExecutedDraft]) -> Sequence[ExecutedDraft]:
        """The drafts with short results, most of the time, if there are any."""
        short = [draft for draft in executed_drafts if draft.length <= LONG]
        return short if short and self._rng.random() >= LONG_SHARE else executed_drafts

    def _task(self, executed_drafts: Sequence[ExecutedDraft], split: Split) -> MCPScenario | None:
        """A task of one of several executed drafts of the same tools."""
        draft = self._least_told(self._fitting(executed_drafts, split), split)
        return None if draft is None else self._composer.task(draft, split)

    def _single(self, split: Split) -> MCPScenario | None:
        for (name,) in self._rarest([(name,) for name in sorted(self._pool.singles)], split, "single"):
            if scenario := self._task(self._pool.singles[name], split):
                return scenario
        return None

    def _chain(self, split: Split) -> MCPScenario | None:
        pairs = [pair for pair in self._pool.chains if self._pool.is_held(pair) is (split == "combinations")]
        for earlier, later in self._rarest(sorted(pairs), split, "chain"):
            if scenario := self._task(self._pool.chains[earlier, later], split):
                return scenario
        return None

    def _pair(self, split: Split) -> MCPScenario | None:
        pairs = [pair for pair in self._pool.pairs() if self._pool.is_held(pair) is (split == "combinations")]
        for tool, other in self._rarest(pairs, split, "pair"):
            if acting := self._pool.acting_pairs.get((tool, other)):
                if scenario := self._acting_pair(acting, split):
                    return scenario
                continue
            firsts = self._pool.drafts_with_questions(tool, None if split == "combinations" else split == "values")
            seconds = self._pool.drafts_with_questions(other, None if split in ("combinations", "values") else False)
            if firsts and seconds:
                first, second = (self._rng.choice(self._shortest(each)) for each in (firsts, seconds))
                if self._rng.random() < 0.5:
                    first, second = second, first
                if first is not second and (scenario := self._composer.pair(first, second, split)):
                    return scenario
        return None

    def _acting_pair(self, pairs: Sequence[tuple[ExecutedDraft, ExecutedDraft]], split: Split) -> MCPScenario | None:
        """A task of a pair of which at least one call changes something."""
        is_held = None if split == "combinations" else split == "values"
        most = MAX_BARE_TASKS if split == "train" else MAX_TASKS
        able = [
            pair
            for pair in pairs
            if (is_held is None or any(part.draft.held_values for part in pair) is is_held)
            and pair[0].task_counts[split] < most
        ]
        if not able:
            return None
        first, second = self._by_turns(able, split, lambda pair: pair[0])
        return self._composer.pair(first, second, split)

    def _follow_up(self, split: Split) -> MCPScenario | None:
        names = [name for name in sorted(self._pool.singles) if len(self._pool.drafts_with_questions(name)) > 1]
        for (name,) in self._rarest([(name,) for name in names], split, "follow_up"):
            laters = [later for later in self._pool.drafts_with_questions(name, split == "values") if later.draft.topic]
            if not laters:
                continue
            later = self._rng.choice(laters)
            earlier = [
                other
                for other in self._pool.drafts_with_questions(name, None if split == "values" else False)
                if other is not later and other.draft.same == later.draft.same
            ]
            if earlier and (scenario := self._composer.follow_up(self._rng.choice(earlier), later, split)):
                return scenario
        return None

    def _impossible(self, split: Split) -> MCPScenario | None:
        if self._rng.random() < CALL_SHARE:
            draft = self._least_told(self._fitting(self._pool.impossible, split), split)
            if draft is not None:
                return self._composer.impossible(draft, self._pool.singles[draft.trial.steps[-1].tool], split)
        return None if split == "values" else self._composer.errand(split)

    def _small_talk(self, split: Split) -> MCPScenario | None:
        if split == "values":
            return None
        before = [scenario for scenario in self._kept.scenarios if scenario.plan.split == "train"]
        return self._composer.small_talk(split, self._rng.choice(before) if before else None)
