"""Which completions are trained, with which reward, compared with what: trajectories → groups of a request. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Literal

from art_langgraph.trajectory import CompletionCall, Place, Trajectory, TrajectoryGroup
from trainer_server.wire import GroupRef, TrajectoryRef

RetryCredit = Literal["drop", "train"]
"""What becomes of a node's attempts before an error retry: left out, or trained with the run's reward. Leaving them out
hides failures that the policy caused."""


def group_refs(
    groups: Iterable[TrajectoryGroup],
    *,
    policy: str | None = None,
    nodes: Sequence[str] | None = None,
    retry_credit: RetryCredit = "drop",
) -> list[GroupRef]:
    """Groups as a training step takes them.

    policy: only its completions; None: all of our gateway. nodes: patterns of node paths to train, as in `matches`.
    A trajectory with one reward is compared with the others of its scenario. Rewards by node are compared per
    (scenario, node), rewards of single completions per (scenario, node path).
    """
    found: dict[str, GroupRef] = {}

    def put(scenario_id: str, reference: TrajectoryRef) -> None:
        found.setdefault(scenario_id, GroupRef(scenario_id=scenario_id, trajectories=[])).trajectories.append(reference)

    for group in groups:
        scenario = group.scenario.id
        for one in group.trajectories:
            calls = [call for call in one.completions if _counts(call, policy, nodes, retry_credit)]
            if one.evaluation:
                calls = []
            annotated = [call for call in calls if call.reward is not None]
            for call in annotated:
                where = f"{scenario}/{'/'.join(call.path)}/each"
                put(where, TrajectoryRef(id=f"{one.id}/{call.id}", reward=call.reward, completions=_ids([call])))
            rest = [call for call in calls if call.reward is None]
            if one.node_rewards is None:
                if rest or not annotated:
                    put(scenario, TrajectoryRef(id=one.id, reward=_finite(one), completions=_ids(rest)))
                continue
            for pattern, reward in one.node_rewards.items():
                mine = _ids(call for call in rest if matches(call, pattern))
                put(f"{scenario}/{pattern}", TrajectoryRef(id=f"{one.id}/{pattern}", reward=reward, completions=mine))
    return list(found.values())


def matches(place: Place, pattern: str) -> bool:
    """Whether a node is meant: by its name, or by a shell pattern for its path ("worker/*", "*/planner")."""
    return place.node == pattern or fnmatchcase("/".join(place.path), pattern)


def _counts(call: CompletionCall, policy: str | None, nodes: Sequence[str] | None, retry_credit: RetryCredit) -> bool:
    retried = retry_credit == "train" and call.superseded == "retry"
    return (
        (call.trainable or (retried and call.model_copy(update={"superseded": None}).trainable))
        and (policy is None or call.policy in (None, policy))
        and (nodes is None or any(matches(call, pattern) for pattern in nodes))
    )


def _ids(calls: Iterable[CompletionCall]) -> list[str]:
    return list(dict.fromkeys(call.id for call in calls if call.id))


def _finite(one: Trajectory) -> float | None:
    return one.reward if one.reward is not None and math.isfinite(one.reward) else None


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
