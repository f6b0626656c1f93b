"""Drafts that were executed and worked, by what tasks can be made of them."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from itertools import combinations, combinations_with_replacement

from art_mcp.scenarios.drafting.draft import ExecutedDraft
from art_mcp.scenarios.plan import MCPScenario
from art_mcp.scenarios.split import combination

HELD_OUT_SHARE = 0.25
"""Share of the combinations of tools that are held out."""

EMPTY_SHARE = 0.2
"""Calls that gave nothing, for each call of the tool that gave something."""

Tools = tuple[str, ...]


class Pool:
    """Executed drafts.

    Args:
        seed: Seed of the combinations that are held out.
        earlier: Scenarios of an interrupted generation. Combinations that they train are not held out now, and those
            that they hold out are.
    """

    def __init__(self, seed: int, earlier: Sequence[MCPScenario] = ()) -> None:
        self._seed = seed
        several = [scenario for scenario in earlier if len(combination(scenario)) > 1]
        self._before = {combination(scenario) for scenario in several if scenario.plan.split == "combinations"}
        self._trained = {combination(scenario) for scenario in several} - self._before
        self.singles: defaultdict[str, list[ExecutedDraft]] = defaultdict(list)
        self.chains: defaultdict[tuple[str, str], list[ExecutedDraft]] = defaultdict(list)
        self.acting_pairs: defaultdict[tuple[str, str], list[tuple[ExecutedDraft, ExecutedDraft]]] = defaultdict(list)
        self.impossible: list[ExecutedDraft] = []
        self.held_combinations: set[Tools] | None = None

    def add(self, executed_draft: ExecutedDraft) -> None:
        """Adds an executed draft."""
        if executed_draft.draft.obstacle is not None:
            self.impossible.append(executed_draft)
        elif executed_draft.draft.kind == "chain":
            self.chains[executed_draft.trial.steps[0].tool, executed_draft.trial.steps[-1].tool].append(executed_draft)
        else:
            if (
                executed_draft.acts
                and executed_draft.trial.changes
                and not self.changes(executed_draft.trial.steps[-1].tool)
            ):
                self.singles[
                    executed_draft.trial.steps[-1].tool
                ].clear()  # they changed nothing, although such a call can
            self.singles[executed_draft.trial.steps[-1].tool].append(executed_draft)

    def add_pair(self, executed_draft: ExecutedDraft, other: ExecutedDraft) -> None:
        """Adds the parts of a pair that was executed together."""
        first, second = sorted((executed_draft.trial.steps[0].tool, other.trial.steps[0].tool))
        self.acting_pairs[first, second].append((executed_draft, other))

    def changes(self, name: str) -> bool:
        """Whether a call of a tool has changed the world."""
        return any(draft.trial.changes for draft in self.singles[name])

    def has_room_for_empty(self, executed_draft: ExecutedDraft) -> bool:
        """Whether a call that gave nothing is wanted: one of a tool that has many that gave something."""
        singles = self.singles[executed_draft.trial.steps[-1].tool]
        empty = sum(each.is_empty for each in singles)
        return executed_draft.draft.kind == "single" and empty + 1 <= EMPTY_SHARE * (len(singles) - empty)

    def drafts_with_questions(self, name: str, held: bool | None = None) -> list[ExecutedDraft]:
        """The calls of a tool about whose results something can be asked.

        Args:
            name: Name of the tool.
            held: Whether they have a held-out value. None: it does not matter.
        """
        return [
            draft
            for draft in self.singles[name]
            if draft.questions and (held is None or bool(draft.draft.held_values) is held)
        ]

    def pairs(self) -> list[tuple[str, str]]:
        """Tools of which two calls can be asked for in one task. A tool can be asked for twice."""
        able = sorted(name for name in self.singles if self.drafts_with_questions(name))
        pairs = list(combinations_with_replacement(able, 2))
        reading = [(tool, other) for tool, other in pairs if tool != other or len(self.drafts_with_questions(tool)) > 1]
        return [*reading, *sorted(self.acting_pairs)]

    def hold(self, wanted: bool) -> None:
        """Chooses the combinations that are held out from training, once. Each of their tools is seen alone there.

        Args:
            wanted: Whether any are.
        """
        if self.held_combinations is not None or not wanted:
            self.held_combinations = self.held_combinations or set()
            return
        able_alone = {
            name for name, drafts in self.singles.items() if any(not draft.draft.held_values for draft in drafts)
        }
        chains = {tuple(sorted(pair)) for pair, drafts in self.chains.items() if drafts}
        pairs = set(combinations(sorted(name for name in self.singles if self.drafts_with_questions(name)), 2))
        acting = {(tool, other) for tool, other in self.acting_pairs if tool != other}
        self.held_combinations = set(self._before)
        for group in (chains, pairs - chains, acting - chains):
            able = sorted((tools for tools in group - self._trained if set(tools) <= able_alone), key=self._rank)
            most = round(HELD_OUT_SHARE * len(able)) if len(able) > 1 else 0
            self.held_combinations |= set(able[: max(most, len(able) > 1)])
        if not self.held_combinations:
            rest = (chains | pairs | acting) - self._trained
            self.held_combinations |= set(
                sorted((tools for tools in rest if set(tools) <= able_alone), key=self._rank)[:1]
            )

    def acted_and_held(self) -> list[tuple[tuple[str, str], list[tuple[ExecutedDraft, ExecutedDraft]]]]:
        """The pairs that were executed together of each held-out combination that has any."""
        return [
            (tools, drafts) for tools, drafts in sorted(self.acting_pairs.items()) if drafts and self.is_held(tools)
        ]

    def is_held(self, tools: Tools) -> bool:
        """Whether a combination of tools is held out."""
        return self.held_combinations is not None and tuple(sorted(set(tools))) in self.held_combinations

    def _rank(self, tools: Tools) -> bytes:
        return hashlib.sha256(f"{self._seed} {' '.join(tools)}".encode()).digest()
