"""Which version is taken: the last one, unless another was better on scenarios that were put aside for that."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence

from art_langgraph.loop.evaluate import Evaluation
from art_mcp.scenarios.plan import MCPScenario
from art_mcp.specialization.measuring.paired import PairedGain

_SHARE, _MOST, _LEAST = 0.1, 32, 8
"""Share of the training scenarios that is put aside, how many at most, and how many at least. Fewer tell nothing."""


def put_aside(training: Sequence[MCPScenario], seed: int) -> tuple[list[MCPScenario], list[MCPScenario]]:
    """Divides training scenarios into those to train on and selection scenarios.

    Selection scenarios tell when a warm start should end, and which version is taken. The same scenarios and the same
    seed give the same division.

    Args:
        training: All training scenarios.
        seed: Seed of the choice.

    Returns:
        The scenarios to train on, and the selection scenarios. There are none of the latter if _SHARE of the training
        scenarios is fewer than _LEAST / 2.
    """
    count = round(len(training) * _SHARE)
    if 2 * count < _LEAST:
        return list(training), []
    count = min(_MOST, max(_LEAST, count))
    chosen = {one.id for one in random.Random(f"selection-{seed}").sample(list(training), count)}
    return [one for one in training if one.id not in chosen], [one for one in training if one.id in chosen]


def selected(measured: Mapping[int, Evaluation], last: int) -> tuple[int, str]:
    """The version to take, and why.

    It is the last one, unless another version solved more selection scenarios, by more than chance gives: by more than
    the root of the number of scenarios in which the two differ, which is one standard error. Of several such versions,
    it is the one that solved most.

    Args:
        measured: An evaluation on the same scenarios for each version.
        last: The last version.
    """
    if last not in measured:
        return last, f"version {last} is the last one; it could not be compared"
    best, why = last, ""
    for version, evaluation in measured.items():
        gain = PairedGain.of(evaluation, measured[last]) if version != last else None
        if gain is None or gain.better - gain.worse <= math.sqrt(gain.better + gain.worse):
            continue
        if best == last or (evaluation.success_rate or 0.0) > (measured[best].success_rate or 0.0):
            best = version
            why = f"version {version} solved {gain.better - gain.worse} more of {gain.scenarios} selection scenarios"
    if best != last:
        return best, f"{why} than the last version, {last}"
    return last, f"no other version was better than the last one, {last}, beyond chance on the selection scenarios"
