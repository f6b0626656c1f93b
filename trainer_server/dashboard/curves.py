"""Learning curves of a policy: each metric of its steps by version, and what its runs and evaluations came to."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from trainer_server.common.intervals import wilson
from trainer_server.common.status import HELD_OUT, NODE, REWARD, SUCCESS
from trainer_server.ledger.run_list import NodeOutcome, Outcome
from trainer_server.wire import Version

_NUMBERS = (int, float)


def curves(
    versions: Sequence[Version],
    training: Sequence[Outcome],
    held_out: Sequence[Outcome],
    nodes: Sequence[NodeOutcome] = (),
) -> dict[str, dict[str, Any]]:
    """Curves by name. Each has `x` (versions), `y`, and where it is known an interval: `low` and `high`.

    Args:
        versions: Of the policy, oldest first.
        training: What its training runs came to, by version.
        held_out: What its evaluations came to, by version.
        nodes: What the rewards of its nodes came to, by node and version.
    """
    drawn: dict[str, dict[str, Any]] = {}
    if held_out:
        intervals = [wilson(outcome.successes, outcome.runs) for outcome in held_out]
        drawn[HELD_OUT] = {
            "x": [outcome.version for outcome in held_out],
            "y": [outcome.successes / outcome.runs for outcome in held_out],
            "low": [low for low, _ in intervals],
            "high": [high for _, high in intervals],
            "runs": [outcome.runs for outcome in held_out],
        }
    if training:
        x = [outcome.version for outcome in training]
        drawn[REWARD] = {
            "x": x,
            "y": [outcome.mean for outcome in training],
            "runs": [outcome.runs for outcome in training],
        }
        drawn[SUCCESS] = {
            "x": x,
            "y": [outcome.successes / outcome.runs for outcome in training],
            "runs": [outcome.runs for outcome in training],
        }
    for node, outcomes in groupby(nodes, key=lambda outcome: outcome.node):
        curve = drawn[NODE + node] = {"x": [], "y": [], "runs": []}
        for outcome in outcomes:
            curve["x"].append(outcome.version)
            curve["y"].append(outcome.mean)
            curve["runs"].append(outcome.runs)
    scored = [version for version in versions if version.score is not None]
    if scored:
        drawn["score"] = {"x": [version.version for version in scored], "y": [version.score for version in scored]}
    for version in versions:
        for name, value in flat(version.metrics).items():
            curve = drawn.setdefault(name, {"x": [], "y": []})
            curve["x"].append(version.version)
            curve["y"].append(value)
    return drawn


def flat(metrics: dict[str, Any], before: str = "") -> dict[str, int | float]:
    """The numbers among metrics, those inside of dicts as `name.inner`."""
    numbers: dict[str, int | float] = {}
    for name, value in metrics.items():
        if isinstance(value, dict) and not before:
            numbers |= flat(value, f"{name}.")
        elif isinstance(value, _NUMBERS) and not isinstance(value, bool) and math.isfinite(value):
            numbers[before + name] = value
    return numbers
