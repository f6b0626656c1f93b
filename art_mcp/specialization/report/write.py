"""Writes the report of a specialization as HTML, as Markdown and as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from art_mcp.specialization.report import tables
from art_mcp.specialization.report.advice import advice
from art_mcp.specialization.report.examples import examples
from art_mcp.specialization.run_directory import RunDirectory
from art_mcp.specialization.specialization import MEASURED, Specialization


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
        "made": outcome,
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
