"""A set of scenarios for one MCP server: training and held-out sets, saved as JSONL, summarized as text."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ValidationError

from art_langgraph.trajectory import Scenario, scenario_id
from art_mcp.scenarios.coverage import ToolCoverage, cover_tools, coverage_lines
from art_mcp.scenarios.plan import MEASURED, MCPScenario
from art_mcp.scenarios.split import combination, split_scenarios
from art_mcp.scenarios.summary import summary
from art_mcp.worlds.alias import Aliases
from trainer_server.common.jsonl import read_jsonl, write_jsonl
from trainer_server.wire import ConfigError

if TYPE_CHECKING:
    from art_mcp.scenarios.catalog import Form

SHOWN_ERRORS = 3
"""Number of errors in the report, the most frequent ones. `dropped` has all."""


class DroppedTask(BaseModel):
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
        scenarios: The scenarios, training and held-out ones together.
        dropped: Tasks that were not kept.
        offered: Names of all tools of the server.
        notes: Remarks for readers of the report.
        reasons: Why no call of a tool worked, by its name, as far as the generator knows.
        parameters: The parameters of each tool whose values can vary, and how tables give them (`parameter_forms`).
            Tools that are missing here: those of their calls.
    """

    scenarios: list[MCPScenario] = field(default_factory=list)
    dropped: list[DroppedTask] = field(default_factory=list)
    offered: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    reasons: dict[str, str] = field(default_factory=dict)
    parameters: dict[str, dict[str, Form]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.scenarios)

    @property
    def train(self) -> list[MCPScenario]:
        """The scenarios to train on."""
        return [scenario for scenario in self.scenarios if scenario.plan.split == "train"]

    @property
    def held_out_sets(self) -> dict[str, list[MCPScenario]]:
        """The held-out sets that have scenarios, foreign requests included, by name, in the order of MEASURED."""
        sets = {name: [scenario for scenario in self.scenarios if scenario.plan.split == name] for name in MEASURED}
        return {name: scenarios for name, scenarios in sets.items() if scenarios}

    @property
    def held_out(self) -> list[MCPScenario]:
        """All held-out scenarios."""
        return [scenario for scenarios in self.held_out_sets.values() for scenario in scenarios]

    @property
    def coverage(self) -> dict[str, int]:
        """Number of scenarios that use each tool. Tools that no scenario uses have 0."""
        uses = Counter(tool for scenario in self.scenarios for tool in set(scenario.tools))
        return {tool: uses[tool] for tool in dict.fromkeys([*self.offered, *uses])}

    @property
    def tool_coverage(self) -> list[ToolCoverage]:
        """What the set has of each tool, and why it has no more. Without `offered`, only tools that scenarios call."""
        return cover_tools(self.scenarios, self.dropped, self.offered, self.reasons, self.parameters)

    @property
    def has_calls(self) -> bool:
        """Whether any scenario calls a tool. Otherwise the set is small talk, and nothing can be learned of it."""
        return any(scenario.tools for scenario in self.scenarios)

    def split(self, held_out: float = 0.25, seed: int = 0) -> ScenarioSet:
        """Splits the set again into training and the three held-out sets.

        A scenario is held out for its combination of tools, the form of its text, or a value of its arguments. No
        training scenario has what is held out. Foreign requests stay in their set. The notes say which set cannot be
        made, and why. The same seed gives the same split.

        Args:
            held_out: Share of the scenarios to hold out, from 0 to 1: a third of it for each held-out set.
            seed: Seed of the choice.

        Returns:
            A new set. This one is not changed.
        """
        scenarios, notes = split_scenarios(self.scenarios, held_out, seed)
        others = [note for note in self.notes if not note.startswith("no held-out ")]
        return replace(self, scenarios=scenarios, notes=[*others, *notes])

    def keep_learnable(self, low: float = 0.0, high: float = 1.0) -> ScenarioSet:
        """Drops the scenarios that the measured policy never or always solves. Unmeasured scenarios stay.

        Args:
            low: Scenarios with this success rate or a lower one are dropped.
            high: Scenarios with this success rate or a higher one are dropped.

        Returns:
            A new set. The scenarios that were removed are in its `dropped`.
        """
        learnable, rejects = [], list(self.dropped)
        for scenario in self.scenarios:
            rate = scenario.plan.measured
            if rate is None or low < rate < high:
                learnable.append(scenario)
            else:
                rejects.append(drop(scenario, "unlearnable", f"the policy solves it in {rate:.0%} of its rollouts"))
        return replace(self, scenarios=learnable, dropped=rejects)

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

        Dropped tasks, tools, reasons and notes go to a second file in the same directory, `NAME.dropped.jsonl`.

        Args:
            path: The JSONL file. Missing directories are created.
        """
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        write_jsonl(path, (scenario.model_dump(mode="json") for scenario in self.scenarios))  # with spaces, to edit
        facts = {name: getattr(self, name) for name in ("offered", "notes", "reasons", "parameters")}
        write_jsonl(_dropped_file(path), [facts, *self.dropped])

    @classmethod
    def load(cls, path: str | Path) -> ScenarioSet:
        """Reads a set that `save` wrote and people may have edited.

        Args:
            path: The JSONL file of scenarios. `NAME.dropped.jsonl` may be missing.

        Raises:
            ConfigError: A file cannot be read, or a line is invalid. The message names the line.
        """
        scenarios = cls(list(read_jsonl(path, _scenario, what="scenario of an MCP server")))
        if _dropped_file(path).exists():
            lines: list[dict[str, Any]] = list(read_jsonl(_dropped_file(path), dict))
            try:
                scenarios.offered, scenarios.notes = lines[0]["offered"], lines[0]["notes"]
                scenarios.reasons = dict(lines[0].get("reasons", {}))  # earlier versions wrote none
                scenarios.parameters = dict(lines[0].get("parameters", {}))
                scenarios.dropped = [DroppedTask.model_validate(line) for line in lines[1:]]
            except (LookupError, ValidationError) as error:
                raise ConfigError(
                    f"{_dropped_file(path)} is not what `save` wrote ({type(error).__name__}): mend it, or delete it; "
                    "the scenarios can be read without it"
                ) from None
        return scenarios

    def report(self) -> str:
        """Summarizes the set as text: split, difficulties, coverage of the tools, phrasings, dropped tasks, notes."""
        by_difficulty = Counter(scenario.plan.difficulty for scenario in self.scenarios)
        reasons = Counter(record.kind for record in self.dropped)
        errors = Counter(record.reason for record in self.dropped if record.kind == "error")
        plans = [scenario.plan for scenario in self.scenarios]
        acting = sum(bool(plan.changes) for plan in plans)
        with_facts = sum(bool(plan.facts) for plan in plans)
        alone = sum(not plan.facts and not plan.changes for plan in plans)
        sizes = ", ".join(f"{len(scenarios)} {name}" for name, scenarios in self.held_out_sets.items())
        set_sizes = f" ({sizes})" if sizes else ""
        lines = [
            f"{len(self.scenarios)} scenarios: {len(self.train)} to train on, {len(self.held_out)} held out{set_sizes}"
            f"; {with_facts} check the answer's facts, {acting} the state of the world, {alone} the calls alone",
            "by difficulty: " + (", ".join(f"{level}: {n}" for level, n in sorted(by_difficulty.items())) or "none"),
            "by tool: " + ", ".join(f"{tool}: {count}" for tool, count in self.coverage.items()),
            *coverage_lines(self.tool_coverage),
            f"dropped: {len(self.dropped)}" + "".join(f", {kind}: {count}" for kind, count in reasons.most_common()),
            *summary(self.scenarios),
            *(f"error: {' '.join(reason.split())} ({times} ×)" for reason, times in errors.most_common(SHOWN_ERRORS)),
            *self.notes,
        ]
        return "\n".join(lines)


def balance_scenarios(scenarios: Iterable[MCPScenario], after: Sequence[MCPScenario] = ()) -> list[MCPScenario]:
    """Orders scenarios so that every prefix has about as many of each difficulty and uses the tools equally often.

    Args:
        scenarios: The scenarios to order.
        after: Scenarios that come before all of these; they count in the balance.

    Returns:
        All of `scenarios`, reordered. Balance of difficulties takes precedence over balance of tools.
    """
    queues: dict[tuple[int, tuple[str, ...]], list[MCPScenario]] = defaultdict(list)
    for scenario in scenarios:
        queues[scenario.plan.difficulty, combination(scenario)].append(scenario)
    levels = Counter(scenario.plan.difficulty for scenario in after)
    uses = Counter(tool for scenario in after for tool in combination(scenario))

    def rarity(kind: tuple[int, tuple[str, ...]]) -> tuple[int, float]:
        return levels[kind[0]], sum(uses[tool] for tool in kind[1]) / max(len(kind[1]), 1)

    order: list[MCPScenario] = []
    while queues:
        rarest = min(queues, key=rarity)
        order.append(queues[rarest].pop(0))
        levels[rarest[0]] += 1
        uses.update(rarest[1])
        if not queues[rarest]:
            del queues[rarest]
    return order


def drop(scenario: MCPScenario, kind: Any, reason: str) -> DroppedTask:
    """The record of a scenario that is not kept.

    Args:
        scenario: The scenario.
        kind: One of the kinds of `DroppedTask`.
        reason: The reason as a sentence.
    """
    return DroppedTask(task=scenario.task, tools=list(scenario.tools), kind=kind, reason=reason)


def _with_aliases(scenario: MCPScenario, aliases: Aliases) -> MCPScenario:
    graph_input, metadata = aliases.value(scenario.input), aliases.value(scenario.metadata)
    own_id = scenario.id if graph_input == scenario.input else scenario_id(graph_input)
    return scenario.model_copy(update={"id": own_id, "input": graph_input, "metadata": metadata})


def _dropped_file(path: str | Path) -> Path:
    """The file of dropped tasks that belongs to a file of scenarios."""
    return Path(path).with_suffix(".dropped.jsonl")


def _scenario(line: Any) -> MCPScenario:
    return MCPScenario.of_scenario(Scenario.model_validate(line))
