"""Recorded runs → a training step: what runs are compared with, where each scenario was met only once."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from art_langgraph.credit import RetryCredit, group_refs
from art_langgraph.trajectory import Trajectory, TrajectoryGroup
from trainer_server.wire import GroupRef


@dataclass(slots=True)
class Comparison:
    """groups: what to send. trained: the runs in them. Runs left out are counted by reason."""

    groups: list[GroupRef] = field(default_factory=list)
    trained: list[Trajectory] = field(default_factory=list)
    grouped: int = 0
    """Runs compared with others of their scenario."""
    single: int = 0
    """Runs compared with the running baseline."""
    unscored: int = 0
    no_baseline: int = 0
    """Single runs, where the policy has no other scored run to make a baseline of."""


def compare(
    runs: Sequence[Trajectory],
    policy: str,
    *,
    history: Sequence[Trajectory] = (),
    nodes: Sequence[str] | None = None,
    retry_credit: RetryCredit = "drop",
) -> Comparison:
    """Groups scored runs by scenario. A run alone in its scenario is compared with a running baseline of the policy.

    The baseline is the mean reward of the other single runs and of `history`, the policy's earlier scored runs: without
    the run itself, or its own reward would pull the baseline towards it.
    """
    found = Comparison()
    scored = [one for one in runs if one.reward is not None]
    found.unscored = len(runs) - len(scored)
    by_scenario = TrajectoryGroup.by_scenario(scored)
    singles = [group.trajectories[0] for group in by_scenario if len(group.trajectories) == 1]
    for group in by_scenario:
        if len(group.trajectories) > 1:
            found.groups += group_refs([group], policy=policy, nodes=nodes, retry_credit=retry_credit)
            found.trained += group.trajectories
            found.grouped += len(group.trajectories)
    pool = {one.id: one.reward for one in [*history, *singles] if one.reward is not None}
    for one in singles:
        others = [reward for other, reward in pool.items() if other != one.id]
        if not others:
            found.no_baseline += 1
            continue
        alone = TrajectoryGroup(scenario=one.scenario, trajectories=[one])
        for reference in group_refs([alone], policy=policy, nodes=nodes, retry_credit=retry_credit):
            reference.baseline = statistics.fmean(others)
            found.groups.append(reference)
        found.trained.append(one)
        found.single += 1
    return found
