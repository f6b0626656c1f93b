"""Learning curves of a policy: each metric of its steps by version, and what its runs and evaluations came to."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

from trainer_server.common.intervals import wilson
from trainer_server.common.status import HELD_OUT, NODE, REWARD, SUCCESS
from trainer_server.ledger.run_list import NodeOutcome, Outcome
from trainer_server.wire import Version


def curves(
    versions: Sequence[Version],
    training: Sequence[Outcome],
    held_out: Sequence[Outcome],
    nodes: Sequence[NodeOutcome] = (),
) -> dict[str, dict[str, Any]]:
    """Curves by name. Each has `x` (versions) and `y`. Those of runs also have the counts `runs`, and held-out success
    has an interval of 95 %: `low` and `high`.

    Args:
        versions: Of the policy, oldest first.
        training: What its training runs came to, by version.
        held_out: What its evaluations came to, by version.
        nodes: What the rewards of its nodes came to, by node and version.
    """
    by_name: dict[str, dict[str, Any]] = {}
    if held_out:
        intervals = [wilson(outcome.successes, outcome.runs) for outcome in held_out]
        by_name[HELD_OUT] = _curve(held_out, _success_rate) | {
            "low": [low for low, _ in intervals],
            "high": [high for _, high in intervals],
        }
    if training:
        by_name[REWARD] = _curve(training, lambda outcome: outcome.mean)
        by_name[SUCCESS] = _curve(training, _success_rate)
    for node, outcomes in groupby(nodes, key=lambda outcome: outcome.node):
        by_name[NODE + node] = _curve(list(outcomes), lambda outcome: outcome.mean)
    if with_score := [version for version in versions if version.score is not None]:
        by_name["score"] = {"x": [row.version for row in with_score], "y": [row.score for row in with_score]}
    for version in versions:
        for name, value in flat(version.metrics).items():
            curve = by_name.setdefault(name, {"x": [], "y": []})
            curve["x"].append(version.version)
            curve["y"].append(value)
    return by_name


def _curve(outcomes: Sequence[Any], y: Callable[[Any], float]) -> dict[str, Any]:
    """A curve over outcomes by version: `Outcome` or `NodeOutcome`."""
    return {
        "x": [outcome.version for outcome in outcomes],
        "y": [y(outcome) for outcome in outcomes],
        "runs": [outcome.runs for outcome in outcomes],
    }


def _success_rate(outcome: Outcome) -> float:
    return outcome.successes / outcome.runs


def flat(metrics: dict[str, Any], before: str = "") -> dict[str, int | float]:
    """The numbers among metrics, those inside of dicts as `name.inner`."""
    numbers: dict[str, int | float] = {}
    for name, value in metrics.items():
        if isinstance(value, dict) and not before:
            numbers |= flat(value, f"{name}.")
        elif isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            numbers[before + name] = value
    return numbers


def beside_numbers(metrics: dict[str, Any], *, inside: bool = False) -> dict[str, Any]:
    """What `flat` leaves out of metrics, without dicts of which nothing is left. inside: They are those of a dict."""
    others: dict[str, Any] = {}
    for name, value in metrics.items():
        if isinstance(value, dict) and not inside:
            if remainder := beside_numbers(value, inside=True):
                others[name] = remainder
        elif isinstance(value, dict) or not flat({name: value}):
            others[name] = value
    return others
