"""What a training step notes of its groups: dead before a remedy, and after it."""

from __future__ import annotations

from collections.abc import Sequence

from art_examples.learning.groups import GroupCounts, counted

from art_langgraph import Scenario, StepResult, Trajectory, TrajectoryGroup
from art_langgraph.loop.watch.record import StepRecord

RESULT = StepResult(policy="p", version=1, metrics={})


def group(name: str, *rewards: float) -> TrajectoryGroup:
    scenario = Scenario(id=name, input=name)
    return TrajectoryGroup(
        scenario=scenario, trajectories=[Trajectory(scenario=scenario, reward=reward) for reward in rewards]
    )


def step(groups: Sequence[TrajectoryGroup], **more: object) -> StepRecord:
    return StepRecord(1, RESULT, list(groups), **more)  # type: ignore[arg-type]


def test_without_a_remedy_as_many_groups_are_dead_after_as_before() -> None:
    counts = counted(step([group("a", 0, 1), group("b", 0, 0), group("c", 1, 1)]), n=2, success=1.0)
    assert counts == GroupCounts(drawn=3, dead_before=2, informative=1, dead=2, runs=6)


def test_runs_to_explore_follow_the_first_runs_of_their_group() -> None:
    counts = counted(step([group("a", 0, 0, 0, 1), group("b", 0, 0, 0, 0)], explored=4), n=2, success=1.0)
    assert counts == GroupCounts(drawn=2, dead_before=2, informative=1, dead=1, runs=8)


def test_scenarios_in_place_of_dead_ones_come_last_and_never_count_as_less_than_none() -> None:
    groups = [group("a", 0, 0), group("b", 0, 0), group("c", 0, 1), group("d", 1, 1)]
    assert counted(step(groups, replaced=2), n=2, success=1.0) == GroupCounts(
        drawn=2, dead_before=2, informative=1, dead=1, runs=8
    )
    full = [group("a", 0, 0), group("b", 0, 1), group("c", 0, 1), group("d", 0, 1)]
    assert counted(step(full, replaced=2), n=2, success=1.0).dead == 0


def test_a_hint_rescues_a_dead_group_if_a_run_with_it_succeeds() -> None:
    groups = [group("a", 0, 0), group("b", 0, 0), group("c", 0, 0.5)]
    hinted = [run for name, reward in (("a", 1.0), ("b", 0.5), ("c", 1.0)) for run in group(name, reward).trajectories]
    counts = counted(step(groups, hinted=hinted), n=2, success=0.9)
    assert counts == GroupCounts(drawn=3, dead_before=2, informative=1, dead=1, runs=9)
