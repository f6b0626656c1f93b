"""Examples for a report: held-out scenarios with their runs before and after."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from art_langgraph.trajectory import Trajectory
from art_mcp.canonical import canonical
from art_mcp.client.in_world import WORLD_KEY
from art_mcp.scenarios.plan import MCPScenario
from art_mcp.specialization.specialization import Specialization
from art_mcp.specialization.verify import answer, solved

EXAMPLES = 3
"""Number of scenarios that are shown."""
_CUT = 600
"""Maximum number of characters of a result or an answer that are shown."""


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
