"""Which version is taken: the one that is best on scenarios that were put aside for that."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from art_langgraph.loop.evaluate import Evaluation
from art_mcp.scenarios.plan import MCPScenario
from art_mcp.specialization.measuring.paired_gain import PairedGain

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
    chosen = {scenario.id for scenario in random.Random(f"selection-{seed}").sample(list(training), count)}
    left = [scenario for scenario in training if scenario.id not in chosen]
    return left, [scenario for scenario in training if scenario.id in chosen]


def select_version(evaluations: Mapping[int, Evaluation], last: int) -> tuple[int, str]:
    """The version to take, and why: the one that solved most selection scenarios.

    Of several it is the one with the greatest mean reward, and of these the newest. The last version has no advantage:
    a training that was too short, or too fast, leaves a worse one than it began with.

    Args:
        evaluations: An evaluation on the same scenarios for each version.
        last: The last version.
    """
    if last not in evaluations or len(evaluations) < 2:
        return last, f"version {last} is the last one; it could not be compared"
    best = max(evaluations, key=lambda version: (*_success(evaluations[version]), version))
    if best == last:
        return last, f"no other version was better than the last one, {last}, on the selection scenarios"
    gain = PairedGain.of(evaluations[best], evaluations[last])
    if gain is not None and (more := gain.better - gain.worse):
        why = f"version {best} solved {more} more of {gain.scenarios} selection scenarios than the last version, {last}"
        return best, why
    return best, f"version {best} solved as many selection scenarios as the last version, {last}, with more reward"


def _success(evaluation: Evaluation) -> tuple[float, float]:
    return evaluation.success_rate or 0.0, evaluation.mean or 0.0
