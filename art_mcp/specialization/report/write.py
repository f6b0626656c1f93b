"""Writes the report of a specialization as HTML, as Markdown and as JSON."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from art_langgraph.loop.evaluate import Evaluation
from art_langgraph.trajectory import Scenario, Trajectory
from art_mcp.canonical import canonical
from art_mcp.client.in_world import WORLD_KEY
from art_mcp.scenarios.plan import MEASURED, MCPScenario
from art_mcp.specialization.measurement import Measurement
from art_mcp.specialization.report.failures import WORDS, Cluster, advice, clusters
from art_mcp.specialization.run_directory import RunDirectory
from art_mcp.specialization.specialization import STAGE_TITLES, Specialization
from art_mcp.specialization.verify import answer, solved

NONE = "–"
_DIFFERENCES = 8


@dataclass(frozen=True, slots=True)
class Table:
    """A table.

    Args:
        title: What it is about. Empty: it needs no title.
        head: Titles of the columns.
        rows: The cells of each row.
    """

    title: str
    head: list[str]
    rows: list[list[str]]


def by_set(outcome: Specialization) -> Table:
    """Success of each measurement on each held-out set, with 95 % intervals and the number of scenarios."""
    there = [name for name in MEASURED if name in outcome.scenarios.held_out_sets]
    rows = []
    for stage, measurement in outcome.measurements.items():
        sets = measurement.sets
        cells = [_rate_of(sets.get(name)) for name in there]
        rows.append([STAGE_TITLES[stage], f"{outcome.policy}@{measurement.version}", _headline(measurement), *cells])
    titles = {
        "values": "new values",
        "phrasings": "new wordings",
        "combinations": "new combinations of tools",
        "foreign": "foreign requests",
    }
    return Table("", ["measured", "version", "headline", *(titles[name] for name in there)], rows)


def by_facts(outcome: Specialization) -> list[Table]:
    """Success by tool, by difficulty and by kind of task, for each measurement."""
    every = [scenario.plan for scenario in outcome.scenarios.scenarios]
    levels, kinds = Counter(plan.difficulty for plan in every), Counter(plan.kind for plan in every)
    return [
        _by(outcome, "tool", outcome.scenarios.coverage, lambda scenario: scenario.tools),
        _by(outcome, "difficulty", dict(sorted(levels.items())), lambda scenario: (scenario.plan.difficulty,)),
        _by(outcome, "kind of task", dict(kinds), lambda scenario: (scenario.plan.kind,)),
    ]


def by_coverage(outcome: Specialization) -> Table:
    """The tools that the scenarios cover in part or not at all, with the reason and what helps. No row: all are."""
    others = [coverage for coverage in outcome.scenarios.tool_coverage if coverage.status != "covered"]
    rows = [
        [coverage.tool, coverage.status, str(coverage.scenarios), coverage.reason or NONE, coverage.remedy or NONE]
        for coverage in sorted(others, key=lambda coverage: coverage.status, reverse=True)
    ]
    return Table("", ["tool", "covered", "scenarios", "why", "what helps"], rows)


def failures_of(outcome: Specialization) -> dict[str, list[Cluster]]:
    """The failures of each measurement by kind, the most frequent first."""
    by_stage = {}
    for stage, measurement in outcome.measurements.items():
        evaluation = measurement.evaluation
        success_ids = [run.id for run in evaluation.trajectories if evaluation.succeeded(run)]
        by_stage[stage] = clusters(evaluation.trajectories, success_ids, outcome.schemas)
    return by_stage


def by_failure(by_stage: Mapping[str, Sequence[Cluster]]) -> Table:
    """How many runs of each measurement failed in which way.

    Args:
        by_stage: The failures of each measurement by kind, the most frequent first.
    """
    counts = {stage: {cluster.kind: len(cluster.failures) for cluster in kinds} for stage, kinds in by_stage.items()}
    present = [kind for kind in WORDS if any(kind in of_stage for of_stage in counts.values())]
    rows = [[WORDS[kind], *(str(of_stage.get(kind, 0)) for of_stage in counts.values())] for kind in present]
    return Table("", ["the model, or the run", *(STAGE_TITLES[stage] for stage in by_stage)], rows)


def differences(measurement: Measurement | None) -> list[tuple[str, int]]:
    """What runs left otherwise in their worlds than they should, the most frequent first, with counts."""
    runs = measurement.evaluation.trajectories if measurement else []
    counts = Counter(
        str(difference) for run in runs for difference in (run.metadata.get(WORLD_KEY) or {}).get("differences") or ()
    )
    return counts.most_common(_DIFFERENCES)


def by_cost(outcome: Specialization) -> Table:
    """Seconds and tokens of each stage."""
    rows = []
    for stage, seconds in outcome.seconds.items():
        tokens = outcome.tokens.get(stage)
        counts = (tokens.prompt, tokens.cached, tokens.sampled, tokens.trained) if tokens else (None,) * 4
        rows.append([stage, f"{seconds:.0f}", *(f"{count:,}" if count else NONE for count in counts)])
    rows.append(["together", f"{sum(outcome.seconds.values()):.0f}", *_sums(outcome)])
    return Table("", ["stage", "seconds", "prompt tokens", "of them cached", "sampled tokens", "trained tokens"], rows)


def by_step(outcome: Specialization) -> Table:
    """The training steps."""
    rows = []
    for row in outcome.steps:
        groups, hints = row.get("groups") or {}, row.get("hints") or {}
        rows.append(
            [
                str(row["step"]),
                str(row["version"]),
                NONE if row.get("reward") is None else f"{row['reward']:.3f}",
                f"{groups.get('informative', 0)} of {groups.get('sent', 0)}",
                f"{hints.get('rescued', 0)} of {hints.get('failed', 0)}" if hints else NONE,
                f"{sum((row.get('seconds') or {}).values()):.0f}",
                row.get("skipped") or row.get("stopped") or "",
            ]
        )
    head = ["step", "version", "mean reward", "informative groups", "rescued by hints", "seconds", "remark"]
    return Table("", head, rows)


def _by(
    outcome: Specialization, title: str, counts: Mapping[Any, int], facts: Callable[[MCPScenario], Sequence[Hashable]]
) -> Table:
    """A row for each group of scenarios.

    Args:
        outcome: The specialization.
        title: What the groups are.
        counts: Number of scenarios by group.
        facts: Gives the groups of a scenario.
    """

    def key(scenario: Scenario) -> Sequence[Hashable]:
        return facts(MCPScenario.of_scenario(scenario))

    rates = {stage: measurement.evaluation.by(key) for stage, measurement in outcome.measurements.items()}
    rows = [
        [str(fact), str(count), *(_share(of_stage.get(fact)) for of_stage in rates.values())]
        for fact, count in counts.items()
    ]
    return Table("", [title, "scenarios", *(STAGE_TITLES[stage] for stage in rates)], rows)


def _headline(measurement: Measurement) -> str:
    interval = measurement.headline_interval
    if measurement.headline is None or interval is None:
        return NONE
    return f"{measurement.headline:.3f} ({interval[0]:.3f} to {interval[1]:.3f})"


def _rate_of(evaluation: Evaluation | None) -> str:
    if evaluation is None or evaluation.success_rate is None:
        return NONE
    low, high = evaluation.success_interval
    return f"{evaluation.success_rate:.3f} ({low:.3f} to {high:.3f}), {evaluation.successes} of {evaluation.n}"


def _share(counts: tuple[int, int] | None) -> str:
    """Successes and runs as text. None: there are no runs."""
    return f"{counts[0]} of {counts[1]}" if counts else NONE


def _sums(outcome: Specialization) -> list[str]:
    names = ("prompt", "cached", "sampled", "trained")
    sums = [sum(getattr(tokens, name) or 0 for tokens in outcome.tokens.values()) for name in names]
    return [f"{count:,}" if count else NONE for count in sums]


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
    failures = failures_of(outcome)
    last = list(outcome.measurements)[-1] if outcome.measurements else None
    return {
        "outcome": outcome,
        "last": last and STAGE_TITLES[last],
        "by_set": by_set(outcome),
        "by_facts": by_facts(outcome),
        "coverage": by_coverage(outcome),
        "failures": failures[last] if last else [],
        "by_failure": by_failure(failures),
        "differences": differences(outcome.measurements[last]) if last else [],
        "steps": by_step(outcome),
        "cost": by_cost(outcome),
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
