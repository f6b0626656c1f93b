"""Credit assignment: turns trajectories into the groups of a training request. Pure functions.

They decide which completions are trained, with which reward, and what each reward is compared with.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import islice
from typing import Literal

from art_langgraph.trajectory import CompletionCall, Place, Trajectory, TrajectoryGroup
from trainer_server.wire import ConfigError, GroupRef, TrajectoryRef, reward_problem

RetryCredit = Literal["drop", "train"]
"""Attempts of a node before an error retry: "drop" leaves them out, "train" trains them with the run's reward. "drop"
hides failures that the policy caused."""

Advantage = float | Mapping[str, float]
"""The advantage of a run: of all its completions, or by node or completion. Keys are patterns of nodes, as in
`NodeRewards`, or ids of completions. The first key that names a completion counts; completions that none names are not
trained."""
AdvantageFunction = Callable[
    [Sequence[TrajectoryGroup]],
    Sequence[Sequence[Advantage | None]] | Awaitable[Sequence[Sequence[Advantage | None]]],
]
"""The advantages of a step: takes its groups, and gives a list for each of them, with an advantage for each run, in
their order. None is for runs without a reward, which are not trained."""

HISTORY = 200
"""How many earlier runs a running baseline is made of, at most."""


def group_refs(
    groups: Iterable[TrajectoryGroup],
    *,
    policy: str | None = None,
    nodes: Sequence[str] | None = None,
    retry_credit: RetryCredit = "drop",
    hints: Mapping[str, str] | None = None,
    advantages: Mapping[str, Advantage] | None = None,
) -> list[GroupRef]:
    """Groups of references to completions, as a training step takes them.

    A trajectory's reward is compared with those of the other trajectories of its scenario. Rewards by node are compared
    per (scenario, node), rewards of single completions per (scenario, node path). Rewards that a judge gave by
    comparing runs are compared with those of the same judgement only. Each completion of a trajectory is in one group.

    A run that evaluates a version, had hints, or was imported from another system, has neither reward nor completions
    in the result, so that a step counts it as skipped.

    Args:
        groups: Trajectories by scenario.
        policy: Train only completions of this policy; None: all completions of the gateway.
        nodes: Patterns of the node paths to train, as in `matches`; None: all.
        retry_credit: Whether attempts of a node before an error retry are trained.
        hints: By id of a trajectory, what the policy would have needed to know (`TrajectoryRef.hint`).
        advantages: By id of a trajectory, what takes the place of the advantage that rewards give
            (`check_advantages`).
    """
    credits = [
        credit
        for group in groups
        for trajectory in group.trajectories
        for credit in _credits(
            trajectory,
            group.scenario.id,
            policy,
            nodes,
            retry_credit,
            hint=(hints or {}).get(trajectory.id),
            advantage=(advantages or {}).get(trajectory.id),
        )
    ]
    return [_group_ref(group) for group in _by_group(credits)]


def advantages_by_run(
    groups: Sequence[TrajectoryGroup], advantages: Sequence[Sequence[Advantage | None]]
) -> dict[str, Advantage]:
    """What an `AdvantageFunction` gave, by id of a run; without the runs that are not trained anyway.

    Raises:
        ConfigError: There are more or fewer advantages than groups or runs; or see `check_advantages`.
    """
    if not isinstance(advantages, Sized) or len(advantages) != len(groups):
        count = len(advantages) if isinstance(advantages, Sized) else type(advantages).__name__
        raise ConfigError(f"advantages={count} for {len(groups)} groups: give a list for each group, in their order")
    result: dict[str, Advantage] = {}
    for group, values in zip(groups, advantages, strict=True):
        if not isinstance(values, Sized) or len(values) != len(group.trajectories):
            raise ConfigError(
                f"the advantages of the group {group.scenario.id!r} are {values!r:.200}: give a list of "
                f"{len(group.trajectories)}, one for each of its runs, in their order"
            )
        result |= {run.id: value for run, value in zip(group.trajectories, values, strict=True) if value is not None}
    check_advantages(groups, result)
    return result


def check_advantages(groups: Sequence[TrajectoryGroup], advantages: Mapping[str, Advantage]) -> None:
    """Looks whether each run that a step may train has an advantage that it can be trained with.

    Args:
        groups: Of the step.
        advantages: By id of a run.

    Raises:
        ConfigError: A run with a reward has none, or one is no finite number or beyond the bounds of rewards. The error
            names the group, the run and the value.
    """
    for group in groups:
        for run in group.trajectories:
            place = f"the run {run.id!r} of the group {group.scenario.id!r}"
            advantage = advantages.get(run.id)
            if advantage is None or (isinstance(advantage, Mapping) and not advantage):
                if run.scored and not run.untrained:
                    raise ConfigError(
                        f"{place} has a reward and no advantage: give one, 0.0 if it should teach nothing"
                    )
                continue
            for key, value in advantage.items() if isinstance(advantage, Mapping) else [("", advantage)]:
                part = f"{place}, {key!r}" if key else place
                try:
                    wrong = reward_problem(float(value), "advantage")
                except (TypeError, ValueError, OverflowError):
                    wrong = f"the advantage is {value!r:.80}, no number"
                if wrong:
                    raise ConfigError(f"{part}: {wrong}")


def find_repeats(groups: Iterable[GroupRef]) -> list[str]:
    """Ids of completions that several references of a request have. A step trains them once for each trajectory."""
    references = [reference for group in groups for reference in group.trajectories]
    count = Counter(id for reference in references for id in set(reference.completions))
    return [id for id, times in count.items() if times > 1]


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
    from_retry = retry_credit == "train" and call.superseded == "retry"
    return (
        (call.trainable or (from_retry and call.model_copy(update={"superseded": None}).trainable))
        and (policy is None or call.policy in (None, policy))
        and (nodes is None or any(matches(call, pattern) for pattern in nodes))
    )


def _ids(calls: Iterable[CompletionCall]) -> list[str]:
    return list(dict.fromkeys(call.id for call in calls if call.id))


@dataclass(frozen=True, slots=True)
class _Credit:
    """A reward of a trajectory, and the completions that it is for."""

    scenario: str
    """Id of the scenario."""
    trajectory: str
    """Id of the trajectory."""
    of: Literal["run", "node", "completion"]
    place: str
    """Pattern of the node, or path of the completion's node; empty for a run."""
    judgement: str | None
    """Id of the judgement that gave the reward; None: the reward stands for itself."""
    reference: TrajectoryRef

    @property
    def kind(self) -> tuple[str, str]:
        """What the reward measures. Rewards of different kinds are never compared."""
        return self.of, self.place

    @property
    def group(self) -> tuple[str, ...]:
        """The group of the rewards that this reward is compared with."""
        return self.scenario, *self.kind, self.judgement or ""


def _credits(
    trajectory: Trajectory,
    scenario: str,
    policy: str | None,
    nodes: Sequence[str] | None,
    retry_credit: RetryCredit,
    *,
    hint: str | None = None,
    advantage: Advantage | None = None,
) -> list[_Credit]:
    """The rewards of a trajectory, or its advantages. Each of its completions belongs to one of them, or to none."""

    def credit(
        of: Literal["run", "node", "completion"],
        place: str,
        reward: float | None,
        calls: Sequence[CompletionCall],
        advantage: float | None = None,
    ) -> _Credit:
        part = {"run": "", "node": f"/{place}", "completion": f"/{calls[0].id}" if calls else ""}[of]
        reference = TrajectoryRef(
            id=f"{trajectory.id}{part}",
            reward=reward,
            completions=_ids(calls),
            run=trajectory.id if in_parts else None,
            hint=hint,
            advantage=advantage,
        )
        return _Credit(scenario, trajectory.id, of, place, trajectory.judgement, reference)

    calls = [call for call in trajectory.completions if _counts(call, policy, nodes, retry_credit)]
    own_rewards = [call for call in calls if call.reward is not None]
    rest = [call for call in calls if call.reward is None]
    in_parts = bool(own_rewards) or trajectory.node_rewards is not None
    if trajectory.untrained:
        return [credit("run", "", None, [])]
    if advantage is not None:
        in_parts = isinstance(advantage, Mapping)
        if not isinstance(advantage, Mapping):
            return [credit("run", "", _reward(trajectory), calls, float(advantage))]
        return [
            credit(of, place, _reward(trajectory), part, value)
            for of, place, part, value in _named_parts(calls, advantage)
        ]
    credits = [credit("completion", "/".join(call.path), call.reward, [call]) for call in own_rewards]
    if trajectory.node_rewards is None:
        return [*credits, credit("run", "", trajectory.reward, rest)] if rest or not own_rewards else credits
    for pattern, reward in trajectory.node_rewards.items():
        credits.append(credit("node", pattern, reward, [call for call in rest if matches(call, pattern)]))
        rest = [call for call in rest if not matches(call, pattern)]
    return credits


def _named_parts(
    calls: Sequence[CompletionCall], advantages: Mapping[str, float]
) -> Iterator[tuple[Literal["node", "completion"], str, list[CompletionCall], float]]:
    """The calls that each key of a run's advantages names, with the place that a credit has, and the advantage."""
    rest = list(calls)
    for key, value in advantages.items():
        part = [call for call in rest if key == call.id or matches(call, key)]
        rest = [call for call in rest if not (key == call.id or matches(call, key))]
        if part and part[0].id == key:
            yield "completion", "/".join(part[0].path), part, float(value)
        else:
            yield "node", key, part, float(value)


def _reward(trajectory: Trajectory) -> float | None:
    """The reward of a run, or the mean of those of its completions where only these have one. None: it has none."""
    own = [call.reward for call in trajectory.completions if call.reward is not None]
    return statistics.fmean(own) if trajectory.reward is None and own else trajectory.reward


def _by_group(credits: Iterable[_Credit]) -> list[list[_Credit]]:
    """Credits that are compared with one another, group by group."""
    groups: dict[tuple[str, ...], list[_Credit]] = {}
    for credit in credits:
        groups.setdefault(credit.group, []).append(credit)
    return list(groups.values())


def _group_ref(credits: Sequence[_Credit], baseline: float | None = None) -> GroupRef:
    """A group of a training request, named by what its rewards are of: "scenario/planner", "scenario/planner/each"."""
    first = credits[0]
    part = {"run": "", "node": f"/{first.place}", "completion": f"/{first.place}/each"}[first.of]
    references = [credit.reference for credit in credits]
    return GroupRef(scenario_id=f"{first.scenario}{part}", trajectories=references, baseline=baseline)


@dataclass(slots=True)
class Comparison:
    """Runs that can be compared, as groups of a training request, and how many runs were left out.

    Each run counts in one of the numbers.
    """

    groups: list[GroupRef] = field(default_factory=list)
    """The groups to send."""
    trained_runs: list[Trajectory] = field(default_factory=list)
    """The runs that have completions in `groups`."""
    grouped_count: int = 0
    """How many of these are compared with others of their scenario."""
    single: int = 0
    """How many of these are compared with a running baseline only."""
    evaluations: int = 0
    """How many runs were left out because they evaluate a version, or had hints."""
    unscored_count: int = 0
    """How many runs were left out because they have no reward."""
    no_completions: int = 0
    """How many scored runs were left out because no completion of theirs can be trained."""
    no_baseline: int = 0
    """How many scored runs were left out because nothing is there to compare their rewards with."""
    mixed_scenarios: int = 0
    """How many scenarios have rewards of several kinds, which are not compared with one another: rewards that stand for
    themselves, and those of one or more judgements."""


def compare(
    runs: Sequence[Trajectory],
    policy: str,
    *,
    history: Iterable[Trajectory] = (),
    nodes: Sequence[str] | None = None,
    retry_credit: RetryCredit = "drop",
) -> Comparison:
    """Groups scored runs by scenario. A reward that is alone in its group is compared with a running baseline.

    The baseline is the mean of the rewards of the same kind in other single runs and in `history`: for the reward of a
    run the rewards of runs, for the reward of a node those of the same node, for the reward of a completion those of
    completions of the same node path. It leaves out the run itself, whose reward would pull the baseline towards it. A
    judge's score has no baseline, because it says something only beside the other scores of its judgement.

    Args:
        runs: Runs to train on. Those without a reward, and those that evaluate a version, are counted and left out.
        policy: Name of the policy whose completions are trained.
        history: Recorded runs of the policy, newest first, for the baseline: the first HISTORY of them that have a
            reward, are trained on, and are none of `runs`.
        nodes: Patterns of the node paths to train; None: all.
        retry_credit: Whether attempts of a node before an error retry are trained ("train") or left out ("drop").
    """
    comparison = Comparison()
    candidates = [run for run in runs if not (run.evaluation or run.hints)]
    scored_runs = [run for run in candidates if run.scored]
    comparison.evaluations = len(runs) - len(candidates)
    comparison.unscored_count = len(candidates) - len(scored_runs)

    def rewards(runs: Iterable[Trajectory]) -> list[_Credit]:
        credits = [c for run in runs for c in _credits(run, run.scenario.id, policy, nodes, retry_credit)]
        return [credit for credit in credits if credit.reference.reward is not None]

    groups = _by_group(rewards(scored_runs))
    singles = [group[0] for group in groups if len(group) == 1]
    run_ids = {run.id for run in runs}
    earlier = (run for run in history if run.id not in run_ids and run.scored and not run.untrained)
    pool = [*rewards(islice(earlier, HISTORY)), *singles]
    group_run_ids, single_run_ids, lone_run_ids = set[str](), set[str](), set[str]()
    for group in groups:
        sampled_run_ids = {credit.trajectory for credit in group if credit.reference.completions}
        if not sampled_run_ids:
            continue
        baseline = _baseline(group[0], pool) if len(group) == 1 else None
        if len(group) == 1 and baseline is None:
            lone_run_ids |= sampled_run_ids
            continue
        comparison.groups.append(_group_ref(group, baseline))
        (single_run_ids if len(group) == 1 else group_run_ids).update(sampled_run_ids)
    comparison.trained_runs = [run for run in scored_runs if run.id in group_run_ids | single_run_ids]
    comparison.grouped_count = len(group_run_ids)
    comparison.single = len(single_run_ids - group_run_ids)
    comparison.no_baseline = len(lone_run_ids - group_run_ids - single_run_ids)
    comparison.no_completions = len(scored_runs) - len(group_run_ids | single_run_ids | lone_run_ids)
    comparison.mixed_scenarios = sum(len(group.judgements) > 1 for group in TrajectoryGroup.by_scenario(scored_runs))
    return comparison


def _baseline(credit: _Credit, pool: Iterable[_Credit]) -> float | None:
    """Mean of the rewards of the same kind in other trajectories; None where there is none, and for a judge's score."""
    if credit.judgement is not None:
        return None
    rewards = [
        other.reference.reward
        for other in pool
        if other.kind == credit.kind and other.judgement is None and other.trajectory != credit.trajectory
    ]
    return statistics.fmean(reward for reward in rewards if reward is not None) if rewards else None
