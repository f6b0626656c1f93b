"""The tables of a report, as rows of texts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from art_langgraph.loop.evaluate import Evaluation
from art_langgraph.trajectory import Scenario
from art_mcp.client.in_world import WORLD_KEY
from art_mcp.scenarios.plan import HELD_OUT, MCPScenario
from art_mcp.specialization.measurement import Measurement
from art_mcp.specialization.report.failures import WORDS, Cluster, clusters
from art_mcp.specialization.specialization import MEASURED, Specialization

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
    there = [name for name in HELD_OUT if name in outcome.scenarios.held_out_sets]
    rows = []
    for stage, measured in outcome.measurements.items():
        sets = measured.sets
        cells = [_rate_of(sets.get(name)) for name in there]
        rows.append([MEASURED[stage], f"{outcome.policy}@{measured.version}", _headline(measured), *cells])
    titles = {"values": "new values", "phrasings": "new wordings", "combinations": "new combinations of tools"}
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


def failures_of(outcome: Specialization) -> dict[str, list[Cluster]]:
    """The failures of each measurement by kind, the most frequent first."""
    by_stage = {}
    for stage, measured in outcome.measurements.items():
        evaluation = measured.evaluation
        solved = [run.id for run in evaluation.trajectories if evaluation.succeeded(run)]
        by_stage[stage] = clusters(evaluation.trajectories, solved, outcome.schemas)
    return by_stage


def by_failure(by_stage: Mapping[str, Sequence[Cluster]]) -> Table:
    """How many runs of each measurement failed in which way.

    Args:
        by_stage: The failures of each measurement by kind, the most frequent first.
    """
    counts = {stage: {cluster.kind: len(cluster.failures) for cluster in kinds} for stage, kinds in by_stage.items()}
    seen = [kind for kind in WORDS if any(kind in of_stage for of_stage in counts.values())]
    rows = [[WORDS[kind], *(str(of_stage.get(kind, 0)) for of_stage in counts.values())] for kind in seen]
    return Table("", ["the model, or the run", *(MEASURED[stage] for stage in by_stage)], rows)


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

    measured = {stage: measurement.evaluation.by(key) for stage, measurement in outcome.measurements.items()}
    rows = [
        [str(fact), str(count), *(_share(of_stage.get(fact)) for of_stage in measured.values())]
        for fact, count in counts.items()
    ]
    return Table("", [title, "scenarios", *(MEASURED[stage] for stage in measured)], rows)


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
