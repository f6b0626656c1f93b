"""The report of a specialization, as HTML and as Markdown."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from art_langgraph.trajectory import Trajectory
from art_mcp.canonical import canonical
from art_mcp.scenarios.plan import MCPScenario
from art_mcp.specialization.verify import answer, solved

if TYPE_CHECKING:
    from art_mcp.specialization.specialize import Specialization

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
    """Writes report.html, report.md and scenarios.jsonl into a directory."""
    output.mkdir(parents=True, exist_ok=True)
    made.scenarios.save(output / "scenarios.jsonl")
    facts = _facts(made)
    for name, escape in (("report.html", True), ("report.md", False)):
        environment = Environment(
            loader=PackageLoader("art_mcp.specialization", "."), autoescape=escape, undefined=StrictUndefined,
            trim_blocks=True, lstrip_blocks=True,
        )  # fmt: skip
        (output / name).write_text(environment.get_template(f"{name}.jinja").render(facts))


def _facts(made: Specialization) -> dict[str, Any]:
    rewards = [(one.step, one.reward) for one in made.steps if one.reward is not None]
    return {
        "made": made,
        "by_tool": _rows(made, made.scenarios.coverage, lambda one: one.tools),
        "by_difficulty": _rows(made, _difficulties(made.scenarios.scenarios), lambda one: (one.plan.difficulty,)),
        "rewards": rewards,
        "curve": _curve([reward for _, reward in rewards]),
        "examples": list(_examples(made)),
        "seconds": sum(made.seconds.values()),
        "cost": "unknown" if made.cost is None else f"{made.cost:.4f} USD",
    }


def _rows(made: Specialization, counts: Mapping[Any, int], key: Any) -> list[Row]:
    before, after = made.before.by(key), made.after.by(key)
    return [Row(str(one), count, _share(before.get(one)), _share(after.get(one))) for one, count in counts.items()]


def _difficulties(scenarios: Iterable[MCPScenario]) -> dict[int, int]:
    found = [one.plan.difficulty for one in scenarios]
    return {one: found.count(one) for one in sorted(set(found))}


def _share(found: tuple[int, int] | None) -> str:
    return f"{found[0]} of {found[1]}" if found else "–"


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
    first = {one.scenario.id: one for one in made.before.runs}
    pairs = [(first[one.scenario.id], one) for one in made.after.runs if one.scenario.id in first]
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
