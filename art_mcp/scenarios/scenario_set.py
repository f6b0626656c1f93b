"""A set of scenarios of one MCP server: divided into training and validation, saved as JSONL, reported."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel

from art_langgraph.jsonl import read_jsonl, write_jsonl
from art_langgraph.trajectory import Scenario
from art_mcp.scenarios.plan import MCPScenario

MIN_TRAINED_COMBINATIONS = 2
"""Tool combinations in which a tool must be trained before another combination with it goes to validation. A model that
is trained on a tool in one combination alone learns that this is what the tool is for: that the other call has to
follow, for example."""


class Dropped(BaseModel):
    """A task that was not kept, and why. kind: the reason as one word, for counting."""

    task: str
    tools: list[str]
    kind: Literal["destructive", "error", "empty", "duplicate", "surplus", "invalid", "unlearnable"]
    reason: str


@dataclass(slots=True)
class ScenarioSet:
    """Scenarios of one server. offered: names of all its tools. notes: what a reader of the report should know."""

    scenarios: list[MCPScenario] = field(default_factory=list)
    dropped: list[Dropped] = field(default_factory=list)
    offered: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.scenarios)

    @property
    def train(self) -> list[MCPScenario]:
        return [one for one in self.scenarios if one.plan.split == "train"]

    @property
    def validation(self) -> list[MCPScenario]:
        return [one for one in self.scenarios if one.plan.split == "validation"]

    @property
    def coverage(self) -> dict[str, int]:
        """Scenarios that use a tool, for every tool that the server offers."""
        used = Counter(tool for one in self.scenarios for tool in set(one.tools))
        return {tool: used[tool] for tool in dict.fromkeys([*self.offered, *used])}

    def split(self, validation: float = 0.25, seed: int = 0) -> ScenarioSet:
        """The set divided anew, by tool combination. The same seed gives the same division.

        A combination goes to validation when each of its tools is trained in MIN_TRAINED_COMBINATIONS others: the agent
        is measured on new ways to use tools that it knows. Where too few combinations qualify, single scenarios are
        held out as well: the same tools with other arguments. The notes say which of the two it is.

        Args:
            validation: Share of the scenarios to hold out, from 0 to 1.
            seed: Of the random order in which combinations are tried.
        """
        rng = random.Random(f"split-{seed}")
        order = rng.sample(self.scenarios, len(self.scenarios))
        wanted = round(validation * len(order)) if len(order) > 1 else 0
        held = self._combinations(order, wanted)
        out = {one.id for one in order if combination(one) in held}
        notes = [one for one in self.notes if not one.startswith("held out by ")]
        if held:
            notes.append(f"held out by tool combination: {', '.join(sorted('+'.join(one) for one in held))}")
        if len(out) < wanted / 2:
            out |= set(_repeated(order, held)[: wanted - len(out)])
            notes.append("held out by arguments: too few tool combinations have tools that two others train as well")
        divided = [one.with_plan(split="validation" if one.id in out else "train") for one in self.scenarios]
        return ScenarioSet(divided, self.dropped, self.offered, notes)

    def keep_learnable(self, low: float = 0.0, high: float = 1.0) -> ScenarioSet:
        """The set without what the measured policy never or always solves. Unmeasured scenarios stay.

        Args:
            low: Rates of success up to this one are dropped.
            high: Rates from this one on are dropped.
        """
        kept, dropped = [], list(self.dropped)
        for one in self.scenarios:
            rate = one.plan.measured
            if rate is None or low < rate < high:
                kept.append(one)
            else:
                dropped.append(drop(one, "unlearnable", f"the policy solves it in {rate:.0%} of its rollouts"))
        return ScenarioSet(kept, dropped, self.offered, self.notes)

    def save(self, path: str | Path) -> None:
        """Writes one scenario a line, for people to edit and `load` to read. What was dropped goes to a file beside it,
        `NAME.dropped.jsonl`.

        Args:
            path: The JSONL file. Missing directories are created.
        """
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        write_jsonl(path, (scenario.model_dump(mode="json") for scenario in self.scenarios))  # with spaces, to edit
        write_jsonl(_beside(path), [{"offered": self.offered, "notes": self.notes}, *self.dropped])

    @classmethod
    def load(cls, path: str | Path) -> ScenarioSet:
        """Reads what `save` wrote and people edited.

        Args:
            path: The JSONL file of scenarios. The file beside it may be missing.

        Raises:
            ConfigError: A file cannot be read, or a line of it is wrong; the message names the line.
        """
        loaded = cls(list(read_jsonl(path, _scenario, what="scenario of an MCP server")))
        if _beside(path).exists():
            lines: list[dict[str, Any]] = list(read_jsonl(_beside(path), dict))
            loaded.offered, loaded.notes = lines[0]["offered"], lines[0]["notes"]
            loaded.dropped = [Dropped.model_validate(line) for line in lines[1:]]
        return loaded

    def report(self) -> str:
        """What is in the set, as text: tools, difficulties, the split, what was dropped and why."""
        by_difficulty = Counter(one.plan.difficulty for one in self.scenarios)
        reasons = Counter(one.kind for one in self.dropped)
        checked = sum(bool(one.plan.facts) for one in self.scenarios)
        lines = [
            f"{len(self.scenarios)} scenarios: {len(self.train)} to train on, {len(self.validation)} held out; "
            f"{checked} check the answer's facts, {len(self.scenarios) - checked} the calls alone",
            "by difficulty: " + (", ".join(f"{one}: {by_difficulty[one]}" for one in sorted(by_difficulty)) or "none"),
            "by tool: " + ", ".join(f"{tool}: {count}" for tool, count in self.coverage.items()),
            f"dropped: {len(self.dropped)}" + "".join(f", {kind}: {count}" for kind, count in reasons.most_common()),
            *self.notes,
        ]
        return "\n".join(lines)

    def _combinations(self, order: Sequence[MCPScenario], wanted: int) -> set[tuple[str, ...]]:
        """Combinations to hold out, in random order. Their tools stay in MIN_TRAINED_COMBINATIONS trained ones."""
        sizes = Counter(combination(one) for one in order)
        held: set[tuple[str, ...]] = set()
        count = 0
        for candidate in dict.fromkeys(combination(one) for one in order):
            left = Counter(tool for one in sizes.keys() - held - {candidate} for tool in one)
            fits = count + sizes[candidate] <= max(wanted, 1) * 1.5
            needed = {tool for one in held | {candidate} for tool in one}
            if count < wanted and fits and all(left[tool] >= MIN_TRAINED_COMBINATIONS for tool in needed):
                held.add(candidate)
                count += sizes[candidate]
        return held


def combination(scenario: MCPScenario) -> tuple[str, ...]:
    """The tools of a scenario, each once, in alphabetical order."""
    return tuple(sorted(set(scenario.tools)))


def balanced(scenarios: Iterable[MCPScenario], after: Sequence[MCPScenario] = ()) -> list[MCPScenario]:
    """All of them, in an order in which every beginning, with those before it (`after`), has about as many of each
    difficulty, and within that uses the tools about equally often."""
    left: dict[tuple[int, tuple[str, ...]], list[MCPScenario]] = defaultdict(list)
    for one in scenarios:
        left[one.plan.difficulty, combination(one)].append(one)
    levels = Counter(one.plan.difficulty for one in after)
    used = Counter(tool for one in after for tool in combination(one))

    def rarity(kind: tuple[int, tuple[str, ...]]) -> tuple[int, float]:
        return levels[kind[0]], sum(used[tool] for tool in kind[1]) / len(kind[1])

    found: list[MCPScenario] = []
    while left:
        rarest = min(left, key=rarity)
        found.append(left[rarest].pop(0))
        levels[rarest[0]] += 1
        used.update(rarest[1])
        if not left[rarest]:
            del left[rarest]
    return found


def _repeated(order: Sequence[MCPScenario], held: set[tuple[str, ...]]) -> list[str]:
    """Ids of scenarios whose combination stays in training by another one; in order."""
    left = Counter(combination(one) for one in order)
    found = []
    for one in order:
        if combination(one) not in held and left[combination(one)] > 1:
            left[combination(one)] -= 1
            found.append(one.id)
    return found


def drop(scenario: MCPScenario, kind: Any, reason: str) -> Dropped:
    return Dropped(task=scenario.task, tools=list(scenario.tools), kind=kind, reason=reason)


def _beside(path: str | Path) -> Path:
    return Path(path).with_suffix(".dropped.jsonl")


def _scenario(line: Any) -> MCPScenario:
    return MCPScenario.of_scenario(Scenario.model_validate(line))
