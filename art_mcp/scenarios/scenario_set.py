"""A set of scenarios for one MCP server: split into training and validation, saved as JSONL, summarized as text."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ValidationError

from art_langgraph.trajectory import Scenario, scenario_id
from art_mcp.scenarios.plan import MCPScenario
from art_mcp.worlds.alias import Aliases
from trainer_server.wire import ConfigError
from trainer_server.wire.jsonl import read_jsonl, write_jsonl

MIN_TRAINED_COMBINATIONS = 2
"""Minimum number of training combinations that contain a tool before another combination with that tool may go to
validation. A model that sees a tool in one combination learns to use it only in that way, for example always
followed by the same second call."""


SHOWN_ERRORS = 3
"""Number of errors in the report, the most frequent ones. `dropped` has all."""


class Dropped(BaseModel):
    """A task that was not kept, and why.

    Args:
        task: Text of the task.
        tools: Tools of its reference, in order.
        kind: The reason as one word, for counting.
        reason: The reason as a sentence.
    """

    task: str
    tools: list[str]
    kind: Literal["destructive", "error", "empty", "duplicate", "surplus", "invalid", "unlearnable", "unstable"]
    reason: str


@dataclass(slots=True)
class ScenarioSet:
    """Scenarios of one MCP server.

    Args:
        scenarios: The scenarios, training and validation together.
        dropped: Tasks that were not kept.
        offered: Names of all tools of the server.
        notes: Remarks for readers of the report.
    """

    scenarios: list[MCPScenario] = field(default_factory=list)
    dropped: list[Dropped] = field(default_factory=list)
    offered: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.scenarios)

    @property
    def train(self) -> list[MCPScenario]:
        """The scenarios to train on."""
        return [scenario for scenario in self.scenarios if scenario.plan.split == "train"]

    @property
    def validation(self) -> list[MCPScenario]:
        """The held-out scenarios."""
        return [scenario for scenario in self.scenarios if scenario.plan.split == "validation"]

    @property
    def coverage(self) -> dict[str, int]:
        """Number of scenarios that use each tool. Tools that no scenario uses have 0."""
        used = Counter(tool for scenario in self.scenarios for tool in set(scenario.tools))
        return {tool: used[tool] for tool in dict.fromkeys([*self.offered, *used])}

    def split(self, validation: float = 0.25, seed: int = 0) -> ScenarioSet:
        """Splits the set again into training and validation, by tool combination.

        A combination goes to validation when each of its tools is trained in MIN_TRAINED_COMBINATIONS others. The agent
        is then measured on new combinations of known tools. If too few combinations qualify, single scenarios are held
        out as well: the same tools with other arguments. The notes say which of the two was done. The same seed gives
        the same split.

        Args:
            validation: Share of the scenarios to hold out, from 0 to 1.
            seed: Seed of the random order in which combinations are tried.

        Returns:
            A new set. This one is not changed.
        """
        rng = random.Random(f"split-{seed}")
        order = rng.sample(self.scenarios, len(self.scenarios))
        wanted = round(validation * len(order)) if len(order) > 1 else 0
        held = self._combinations(order, wanted)
        out = {scenario.id for scenario in order if combination(scenario) in held}
        notes = [note for note in self.notes if not note.startswith("held out by ")]
        if held:
            notes.append(f"held out by tool combination: {', '.join(sorted('+'.join(tools) for tools in held))}")
        if len(out) < wanted / 2:
            out |= set(_repeated(order, held)[: wanted - len(out)])
            notes.append("held out by arguments: too few tool combinations have tools that two others train as well")
        scenarios = [
            scenario.with_plan(split="validation" if scenario.id in out else "train") for scenario in self.scenarios
        ]
        return ScenarioSet(scenarios, self.dropped, self.offered, notes)

    def keep_learnable(self, low: float = 0.0, high: float = 1.0) -> ScenarioSet:
        """Drops the scenarios that the measured policy never or always solves. Unmeasured scenarios stay.

        Args:
            low: Scenarios with this success rate or a lower one are dropped.
            high: Scenarios with this success rate or a higher one are dropped.

        Returns:
            A new set. The scenarios that were removed are in its `dropped`.
        """
        kept, dropped = [], list(self.dropped)
        for scenario in self.scenarios:
            rate = scenario.plan.measured
            if rate is None or low < rate < high:
                kept.append(scenario)
            else:
                dropped.append(drop(scenario, "unlearnable", f"the policy solves it in {rate:.0%} of its rollouts"))
        return ScenarioSet(kept, dropped, self.offered, self.notes)

    def with_aliases(self, aliases: Aliases) -> ScenarioSet:
        """Replaces placeholders such as `{world:repo}`, and paths of originals, by what the model sees: `/world/repo`.

        Args:
            aliases: Those of the server's world.

        Returns:
            A new set. The ids of scenarios whose task is changed are those of the changed task.

        Raises:
            ConfigError: A placeholder names no place of the world.
        """
        return replace(self, scenarios=[_with_aliases(scenario, aliases) for scenario in self.scenarios])

    def save(self, path: str | Path) -> None:
        """Writes one scenario per line. People can edit the file, and `load` reads it.

        Dropped tasks, tool names and notes go to a second file in the same directory, `NAME.dropped.jsonl`.

        Args:
            path: The JSONL file. Missing directories are created.
        """
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        write_jsonl(path, (scenario.model_dump(mode="json") for scenario in self.scenarios))  # with spaces, to edit
        write_jsonl(_dropped_file(path), [{"offered": self.offered, "notes": self.notes}, *self.dropped])

    @classmethod
    def load(cls, path: str | Path) -> ScenarioSet:
        """Reads a set that `save` wrote and people may have edited.

        Args:
            path: The JSONL file of scenarios. `NAME.dropped.jsonl` may be missing.

        Raises:
            ConfigError: A file cannot be read, or a line is invalid. The message names the line.
        """
        loaded = cls(list(read_jsonl(path, _scenario, what="scenario of an MCP server")))
        if _dropped_file(path).exists():
            lines: list[dict[str, Any]] = list(read_jsonl(_dropped_file(path), dict))
            try:
                loaded.offered, loaded.notes = lines[0]["offered"], lines[0]["notes"]
                loaded.dropped = [Dropped.model_validate(line) for line in lines[1:]]
            except (LookupError, ValidationError) as error:
                raise ConfigError(
                    f"{_dropped_file(path)} is not what `save` wrote ({type(error).__name__}): mend it, or delete it; "
                    "the scenarios can be read without it"
                ) from None
        return loaded

    def report(self) -> str:
        """Summarizes the set as text: the split, difficulties, tools, dropped tasks by reason, errors, notes."""
        by_difficulty = Counter(scenario.plan.difficulty for scenario in self.scenarios)
        reasons = Counter(dropped.kind for dropped in self.dropped)
        errors = Counter(dropped.reason for dropped in self.dropped if dropped.kind == "error")
        plans = [scenario.plan for scenario in self.scenarios]
        acting = sum(bool(plan.changes) for plan in plans)
        checked = sum(bool(plan.facts) for plan in plans)
        alone = sum(not plan.facts and not plan.changes for plan in plans)
        lines = [
            f"{len(self.scenarios)} scenarios: {len(self.train)} to train on, {len(self.validation)} held out; "
            f"{checked} check the answer's facts, {acting} the state of the world, {alone} the calls alone",
            "by difficulty: " + (", ".join(f"{level}: {n}" for level, n in sorted(by_difficulty.items())) or "none"),
            "by tool: " + ", ".join(f"{tool}: {count}" for tool, count in self.coverage.items()),
            f"dropped: {len(self.dropped)}" + "".join(f", {kind}: {count}" for kind, count in reasons.most_common()),
            *(f"error: {reason} ({times} ×)" for reason, times in errors.most_common(SHOWN_ERRORS)),
            *self.notes,
        ]
        return "\n".join(lines)

    def _combinations(self, order: Sequence[MCPScenario], wanted: int) -> set[tuple[str, ...]]:
        """Chooses the combinations to hold out. Each of their tools stays in MIN_TRAINED_COMBINATIONS trained ones.

        Args:
            order: All scenarios, in the order in which their combinations are tried.
            wanted: Number of scenarios to hold out.
        """
        sizes = Counter(combination(scenario) for scenario in order)
        held: set[tuple[str, ...]] = set()
        count = 0
        for candidate in dict.fromkeys(combination(scenario) for scenario in order):
            left = Counter(tool for tools in sizes.keys() - held - {candidate} for tool in tools)
            fits = count + sizes[candidate] <= max(wanted, 1) * 1.5
            needed = {tool for tools in held | {candidate} for tool in tools}
            if count < wanted and fits and all(left[tool] >= MIN_TRAINED_COMBINATIONS for tool in needed):
                held.add(candidate)
                count += sizes[candidate]
        return held


def combination(scenario: MCPScenario) -> tuple[str, ...]:
    """The tools of a scenario, each once, in alphabetical order."""
    return tuple(sorted(set(scenario.tools)))


def balanced(scenarios: Iterable[MCPScenario], after: Sequence[MCPScenario] = ()) -> list[MCPScenario]:
    """Orders scenarios so that every prefix has about as many of each difficulty and uses the tools equally often.

    Args:
        scenarios: The scenarios to order.
        after: Scenarios that come before all of these; they count in the balance.

    Returns:
        All of `scenarios`, reordered. Balance of difficulties takes precedence over balance of tools.
    """
    left: dict[tuple[int, tuple[str, ...]], list[MCPScenario]] = defaultdict(list)
    for scenario in scenarios:
        left[scenario.plan.difficulty, combination(scenario)].append(scenario)
    levels = Counter(scenario.plan.difficulty for scenario in after)
    used = Counter(tool for scenario in after for tool in combination(scenario))

    def rarity(kind: tuple[int, tuple[str, ...]]) -> tuple[int, float]:
        return levels[kind[0]], sum(used[tool] for tool in kind[1]) / len(kind[1])

    ordered: list[MCPScenario] = []
    while left:
        rarest = min(left, key=rarity)
        ordered.append(left[rarest].pop(0))
        levels[rarest[0]] += 1
        used.update(rarest[1])
        if not left[rarest]:
            del left[rarest]
    return ordered


def _repeated(order: Sequence[MCPScenario], held: set[tuple[str, ...]]) -> list[str]:
    """Ids of scenarios that can be held out while another scenario keeps their combination in training; in order."""
    left = Counter(combination(scenario) for scenario in order)
    ids = []
    for scenario in order:
        if combination(scenario) not in held and left[combination(scenario)] > 1:
            left[combination(scenario)] -= 1
            ids.append(scenario.id)
    return ids


def drop(scenario: MCPScenario, kind: Any, reason: str) -> Dropped:
    """The record of a scenario that is not kept.

    Args:
        scenario: The scenario.
        kind: One of the kinds of `Dropped`.
        reason: The reason as a sentence.
    """
    return Dropped(task=scenario.task, tools=list(scenario.tools), kind=kind, reason=reason)


def _with_aliases(scenario: MCPScenario, aliases: Aliases) -> MCPScenario:
    given, metadata = aliases.value(scenario.input), aliases.value(scenario.metadata)
    own_id = scenario.id if given == scenario.input else scenario_id(given)
    return scenario.model_copy(update={"id": own_id, "input": given, "metadata": metadata})


def _dropped_file(path: str | Path) -> Path:
    """The file of dropped tasks that belongs to a file of scenarios."""
    return Path(path).with_suffix(".dropped.jsonl")


def _scenario(line: Any) -> MCPScenario:
    return MCPScenario.of_scenario(Scenario.model_validate(line))
