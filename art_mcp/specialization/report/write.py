"""Writes the report of a specialization as HTML, as Markdown and as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from art_langgraph.trajectory import Trajectory
from art_mcp.canonical import canonical
from art_mcp.client.in_world import WORLD_KEY
from art_mcp.scenarios.plan import MCPScenario
from art_mcp.specialization.report import tables
from art_mcp.specialization.report.advice import advice
from art_mcp.specialization.run_directory import RunDirectory
from art_mcp.specialization.specialization import MEASURED, Specialization
from art_mcp.specialization.verify import answer, solved

EXAMPLES = 3
"""Number of scenarios that are shown."""
_CUT = 600
"""Maximum number of characters of a result or an answer that are shown."""


def write_report(outcome: Specialization, directory: RunDirectory) -> None:
    """Writes report.html, report.md and summary.json, with all that is known so far.

    Args:
        outcome: The outcome of `specialize`, or what there is of it.
        directory: The directory of the run.
    """
    if directory.path is None:
        return
    facts = _facts(outcome)
    for name, escape in (("report.html", True), ("report.md", False)):
        environment = Environment(
            loader=PackageLoader("art_mcp.specialization.report", "."),
            autoescape=escape,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        environment.filters["cell"] = _cell
        directory.write(name, environment.get_template(f"{name}.jinja").render(facts))
    directory.write("summary.json", json.dumps(outcome.summary(), indent=2) + "\n")


def _facts(outcome: Specialization) -> dict[str, Any]:
    """The variables of the templates."""
    failures = tables.failures_of(outcome)
    last = list(outcome.measurements)[-1] if outcome.measurements else None
    return {
        "outcome": outcome,
        "last": last and MEASURED[last],
        "by_set": tables.by_set(outcome),
        "by_facts": tables.by_facts(outcome),
        "failures": failures[last] if last else [],
        "by_failure": tables.by_failure(failures),
        "differences": tables.differences(outcome.measurements[last]) if last else [],
        "steps": tables.by_step(outcome),
        "cost": tables.by_cost(outcome),
        "curve": _curve([reward for _, reward in outcome.rewards]),
        "examples": list(examples(outcome)),
        "advice": advice(outcome, failures[last] if last else []),
        "price": "unknown" if outcome.cost is None else f"{outcome.cost:.4f} USD",
    }


def _curve(rewards: Sequence[float], width: int = 600, height: int = 160) -> str:
    """Points of an SVG polyline. Rewards from 0 to 1 go from the bottom to the top; others are clipped."""
    across = width / max(len(rewards) - 1, 1)
    return " ".join(
        f"{at * across:.1f},{height * (1 - min(max(reward, 0.0), 1.0)):.1f}"
        for at, reward in enumerate(rewards)
        if math.isfinite(reward)
    )


def _cell(text: str) -> str:
    """A text in a cell of a Markdown table."""
    return " ".join(str(text).split()).replace("|", "\\|")


@dataclass(frozen=True, slots=True)
class Run:
    """A run of an example.

    Args:
        solved: Whether the run solved the scenario.
        lines: The calls with their results, then the answer, then what it left otherwise than it should.
    """

    solved: bool
    lines: list[str]


@dataclass(frozen=True, slots=True)
class Example:
    """A held-out scenario with its runs in the first and in the last measurement."""

    task: str
    before: Run
    after: Run


def examples(outcome: Specialization) -> Iterator[Example]:
    """Held-out scenarios with their runs. Those that only the last version solves come first."""
    if outcome.before is None:
        return
    last = list(outcome.measurements.values())[-1]
    first = {run.scenario.id: run for run in outcome.before.evaluation.trajectories}
    pairs = [(first[run.scenario.id], run) for run in last.evaluation.trajectories if run.scenario.id in first]
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
    lines += [f"world: {difference}" for difference in (run.metadata.get(WORLD_KEY) or {}).get("differences") or ()]
    return Run(solved(run), lines)


def _short(text: str) -> str:
    """The text on a single line, cut to _CUT characters."""
    text = " ".join(text.split())
    return text if len(text) <= _CUT else f"{text[:_CUT]} … ({len(text)} characters)"
