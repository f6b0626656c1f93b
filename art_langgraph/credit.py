"""Credit assignment: turns trajectories into the groups of a training request. Pure functions.

They decide which completions are trained, with which reward, and what each reward is compared with.
"""

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
"""Attempts of a node before an error retry: "drop" leaves them out, "train" trains them with the run's reward. "drop"
hides failures that the policy caused."""


def group_refs(
    groups: Iterable[TrajectoryGroup],
    *,
    policy: str | None = None,
    nodes: Sequence[str] | None = None,
    retry_credit: RetryCredit = "drop",
) -> list[GroupRef]:
    """Groups of references to completions, as a training step takes them.

    A trajectory's reward is compared with those of the other trajectories of its scenario. Rewards by node are compared
    per (scenario, node), rewards of single completions per (scenario, node path).

    Args:
        groups: Trajectories by scenario.
        policy: Train only completions of this policy; None: all completions of the gateway.
        nodes: Patterns of the node paths to train, as in `matches`; None: all.
        retry_credit: Whether attempts of a node before an error retry are trained.
    """
    by_scenario: dict[str, GroupRef] = {}

    def put(scenario_id: str, reference: TrajectoryRef) -> None:
        group = by_scenario.setdefault(scenario_id, GroupRef(scenario_id=scenario_id, trajectories=[]))
        group.trajectories.append(reference)

    for group in groups:
        scenario = group.scenario.id
        for trajectory in group.trajectories:
            calls = [call for call in trajectory.completions if _counts(call, policy, nodes, retry_credit)]
            if trajectory.evaluation:
                calls = []
            annotated = [call for call in calls if call.reward is not None]
            for call in annotated:
                where = f"{scenario}/{'/'.join(call.path)}/each"
                put(where, TrajectoryRef(id=f"{trajectory.id}/{call.id}", reward=call.reward, completions=_ids([call])))
            rest = [call for call in calls if call.reward is None]
            if trajectory.node_rewards is None:
                if rest or not annotated:
                    put(scenario, TrajectoryRef(id=trajectory.id, reward=_finite(trajectory), completions=_ids(rest)))
                continue
            for pattern, reward in trajectory.node_rewards.items():
                ids = _ids(call for call in rest if matches(call, pattern))
                reference = TrajectoryRef(id=f"{trajectory.id}/{pattern}", reward=reward, completions=ids)
                put(f"{scenario}/{pattern}", reference)
    return list(by_scenario.values())


def matches(place: Place, pattern: str) -> bool:
    """Whether a pattern names a place in a graph.

    Args:
        place: A completion, tool call or node run.
        pattern: The name of a node ("planner"), the name of an agent ("researcher"), or a shell pattern for the path
            ("worker/*", "*/planner") or for the path from the agent's name on ("researcher/model").
    """
    if pattern in (place.node, place.agent) or fnmatchcase("/".join(place.path), pattern):
        return True
    if place.agent is None or place.agent not in place.path:
        return False
    at = max(index for index, name in enumerate(place.path) if name == place.agent)
    return fnmatchcase("/".join(place.path[at:]), pattern)


def _counts(call: CompletionCall, policy: str | None, nodes: Sequence[str] | None, retry_credit: RetryCredit) -> bool:
    retried = retry_credit == "train" and call.superseded == "retry"
    return (
        (call.trainable or (retried and call.model_copy(update={"superseded": None}).trainable))
        and (policy is None or call.policy in (None, policy))
        and (nodes is None or any(matches(call, pattern) for pattern in nodes))
    )


def _ids(calls: Iterable[CompletionCall]) -> list[str]:
    return list(dict.fromkeys(call.id for call in calls if call.id))


def _finite(trajectory: Trajectory) -> float | None:
    return trajectory.reward if trajectory.reward is not None and math.isfinite(trajectory.reward) else None


@dataclass(slots=True)
class Comparison:
    """Runs that can be compared, as groups of a training request, and how many runs were left out."""

    groups: list[GroupRef] = field(default_factory=list)
    """The groups to send."""
    trained: list[Trajectory] = field(default_factory=list)
    """The runs in `groups`."""
    grouped: int = 0
    """How many runs are compared with others of their scenario."""
    single: int = 0
    """How many runs are compared with the running baseline."""
    unscored: int = 0
    """How many runs were left out because they have no reward."""
    no_baseline: int = 0
    """How many single runs were left out because there is no other scored run to make a baseline of."""


def compare(
    runs: Sequence[Trajectory],
    policy: str,
    *,
    history: Sequence[Trajectory] = (),
    nodes: Sequence[str] | None = None,
    retry_credit: RetryCredit = "drop",
) -> Comparison:
    """Groups scored runs by scenario. A run alone in its scenario is compared with a running baseline of the policy.

    The baseline is the mean reward of the other single runs and of `history`. It leaves out the run itself, whose
    reward would pull the baseline towards it.

    Args:
        runs: Runs to train on; those without a reward are counted and left out.
        policy: As that of `group_refs`.
        history: Earlier scored runs of the policy, for the baseline.
        nodes: As those of `group_refs`.
        retry_credit: As that of `group_refs`.
    """
    comparison = Comparison()
    scored = [run for run in runs if run.reward is not None]
    comparison.unscored = len(runs) - len(scored)
    by_scenario = TrajectoryGroup.by_scenario(scored)
    singles = [group.trajectories[0] for group in by_scenario if len(group.trajectories) == 1]
    for group in by_scenario:
        if len(group.trajectories) > 1:
            comparison.groups += group_refs([group], policy=policy, nodes=nodes, retry_credit=retry_credit)
            comparison.trained += group.trajectories
            comparison.grouped += len(group.trajectories)
    pool = {run.id: run.reward for run in [*history, *singles] if run.reward is not None}
    for run in singles:
        others = [reward for other, reward in pool.items() if other != run.id]
        if not others:
            comparison.no_baseline += 1
            continue
        alone = TrajectoryGroup(scenario=run.scenario, trajectories=[run])
        for reference in group_refs([alone], policy=policy, nodes=nodes, retry_credit=retry_credit):
            reference.baseline = statistics.fmean(others)
            comparison.groups.append(reference)
        comparison.trained.append(run)
        comparison.single += 1
    return comparison
