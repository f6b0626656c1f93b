"""Writes the report of a specialization as HTML and as Markdown."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from art_langgraph.trajectory import Scenario, Trajectory
from art_mcp.canonical import canonical
from art_mcp.scenarios.plan import MCPScenario
from art_mcp.specialization.specialization import Specialization
from art_mcp.specialization.verify import answer, solved
from trainer_server.wire.home import write_private

EXAMPLES = 3
"""Number of scenarios in the report that are shown with their runs before and after."""
_CUT = 600
"""Maximum number of characters of a result or an answer that are shown."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a table: the success of scenarios that use a tool, or of scenarios of a difficulty.

    Args:
        name: The tool or the difficulty.
        scenarios: Number of scenarios, training and held-out ones together.
        before: Successful held-out runs before the training, as "3 of 8".
        after: Successful held-out runs after it.
    """

    name: str
    scenarios: int
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Run:
    """A run of an example.

    Args:
        solved: Whether the run solved the scenario.
        lines: The calls with their results, then the answer.
    """

    solved: bool
    lines: list[str]


@dataclass(frozen=True, slots=True)
class Example:
    """A held-out scenario with its runs before and after the training."""

    task: str
    before: Run
    after: Run


def write_report(made: Specialization, output: Path) -> None:
    """Writes report.html, report.md and scenarios.jsonl.

    Args:
        made: The outcome of `specialize`.
        output: The directory. It is created if it is missing.
    """
    output.mkdir(parents=True, exist_ok=True)
    made.scenarios.save(output / "scenarios.jsonl")
    facts = _facts(made)
    for name, escape in (("report.html", True), ("report.md", False)):
        environment = Environment(
            loader=PackageLoader("art_mcp.specialization", "."),
            autoescape=escape,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        write_private(output / name, environment.get_template(f"{name}.jinja").render(facts))


def _facts(made: Specialization) -> dict[str, Any]:
    """The variables of the templates."""
    rewards = [(record.step, record.reward) for record in made.steps if record.reward is not None]
    return {
        "made": made,
        "by_tool": _rows(made, made.scenarios.coverage, _tools),
        "by_difficulty": _rows(made, _difficulties(made.scenarios.scenarios), _difficulty),
        "rewards": rewards,
        "curve": _curve([reward for _, reward in rewards]),
        "examples": list(_examples(made)),
        "seconds": sum(made.seconds.values()),
        "cost": "unknown" if made.cost is None else f"{made.cost:.4f} USD",
    }


def _rows(
    made: Specialization, counts: Mapping[Any, int], facts: Callable[[MCPScenario], Sequence[Hashable]]
) -> list[Row]:
    """A row for each group of scenarios.

    Args:
        made: The outcome of `specialize`.
        counts: Number of scenarios by group. A group is a tool or a difficulty.
        facts: Gives the groups of a scenario.
    """

    def key(scenario: Scenario) -> Sequence[Hashable]:
        return facts(MCPScenario.of_scenario(scenario))

    before, after = made.before.by(key), made.after.by(key)
    return [Row(str(fact), count, _share(before.get(fact)), _share(after.get(fact))) for fact, count in counts.items()]


def _tools(scenario: MCPScenario) -> Sequence[Hashable]:
    return scenario.tools


def _difficulty(scenario: MCPScenario) -> Sequence[Hashable]:
    return (scenario.plan.difficulty,)


def _difficulties(scenarios: Iterable[MCPScenario]) -> dict[int, int]:
    return dict(sorted(Counter(scenario.plan.difficulty for scenario in scenarios).items()))


def _share(counts: tuple[int, int] | None) -> str:
    """Successes and runs as text. None: there are no runs."""
    return f"{counts[0]} of {counts[1]}" if counts else "–"


def _curve(rewards: Sequence[float], width: int = 600, height: int = 160) -> str:
    """Points of an SVG polyline. Rewards from 0 to 1 go from the bottom to the top; others are clipped."""
    across = width / max(len(rewards) - 1, 1)
    return " ".join(
        f"{at * across:.1f},{height * (1 - min(max(reward, 0.0), 1.0)):.1f}"
        for at, reward in enumerate(rewards)
        if math.isfinite(reward)
    )


def _examples(made: Specialization) -> Iterable[Example]:
    """Held-out scenarios with their runs before and after. Those that only the last version solves come first."""
    before_runs = {run.scenario.id: run for run in made.before.trajectories}
    pairs = [(before_runs[run.scenario.id], run) for run in made.after.trajectories if run.scenario.id in before_runs]
    pairs.sort(key=lambda pair: solved(pair[0]) - solved(pair[1]))
    for before, after in pairs[:EXAMPLES]:
        yield Example(MCPScenario.of_scenario(after.scenario).task, _run(before), _run(after))


def _run(run: Trajectory) -> Run:
    """A run as the report shows it."""
    lines = []
    for call in run.tool_calls:
        result = f"error: {call.result}" if call.is_error else call.result or ""
        lines.append(f"{call.tool}({canonical(call.arguments)}) → {_short(result)}")
    lines.append(_short(run.error or answer(run) or "(no answer)"))
    return Run(solved(run), lines)


def _short(text: str) -> str:
    """The text on a single line, cut to _CUT characters."""
    text = " ".join(text.split())
    return text if len(text) <= _CUT else f"{text[:_CUT]} … ({len(text)} characters)"
