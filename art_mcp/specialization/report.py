"""The report of a specialization, as HTML and as Markdown."""

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

EXAMPLES = 3
"""Scenarios of which the report shows both runs."""
_CUT = 600
"""Characters of a result or an answer that are shown."""


@dataclass(frozen=True, slots=True)
class Row:
    """Held-out successes of some scenarios: shares before and after, and of how many runs."""

    name: str
    scenarios: int
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Run:
    """One run of an example, as lines: calls with what they gave, then the answer."""

    solved: bool
    lines: list[str]


@dataclass(frozen=True, slots=True)
class Example:
    task: str
    before: Run
    after: Run


def write_report(made: Specialization, output: Path) -> None:
    """Writes report.html, report.md and scenarios.jsonl.

    Args:
        made: What `specialize` did.
        output: The directory, created if it is missing.
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
        (output / name).write_text(environment.get_template(f"{name}.jinja").render(facts))


def _facts(made: Specialization) -> dict[str, Any]:
    rewards = [(record.step, record.reward) for record in made.steps if record.reward is not None]
    return {
        "made": made,
        "by_tool": _rows(made, made.scenarios.coverage, _tools),
        "by_difficulty": _rows(
            made, _difficulties(made.scenarios.scenarios), lambda scenario: (scenario.plan.difficulty,)
        ),
        "rewards": rewards,
        "curve": _curve([reward for _, reward in rewards]),
        "examples": list(_examples(made)),
        "seconds": sum(made.seconds.values()),
        "cost": "unknown" if made.cost is None else f"{made.cost:.4f} USD",
    }


def _rows(
    made: Specialization, counts: Mapping[Any, int], facts: Callable[[MCPScenario], Sequence[Hashable]]
) -> list[Row]:
    """A row for each fact of the scenarios. counts: how many scenarios have it."""

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
    return f"{counts[0]} of {counts[1]}" if counts else "–"


def _curve(rewards: Sequence[float], width: int = 600, height: int = 160) -> str:
    """Points of an SVG polyline: rewards of 0 to 1 from bottom to top."""
    across = width / max(len(rewards) - 1, 1)
    return " ".join(
        f"{at * across:.1f},{height * (1 - min(max(reward, 0.0), 1.0)):.1f}"
        for at, reward in enumerate(rewards)
        if math.isfinite(reward)
    )


def _examples(made: Specialization) -> Iterable[Example]:
    """Held-out scenarios with both runs, first those that the last version alone solves."""
    first = {run.scenario.id: run for run in made.before.trajectories}
    pairs = [(first[run.scenario.id], run) for run in made.after.trajectories if run.scenario.id in first]
    pairs.sort(key=lambda pair: solved(pair[0]) - solved(pair[1]))
    for before, after in pairs[:EXAMPLES]:
        yield Example(MCPScenario.of_scenario(after.scenario).task, _run(before), _run(after))


def _run(run: Trajectory) -> Run:
    lines = []
    for call in run.tool_calls:
        result = f"error: {call.result}" if call.is_error else call.result or ""
        lines.append(f"{call.tool}({canonical(call.arguments)}) → {_short(result)}")
    lines.append(_short(run.error or answer(run) or "(no answer)"))
    return Run(solved(run), lines)


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _CUT else f"{text[:_CUT]} … ({len(text)} characters)"
