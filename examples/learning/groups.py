"""What became of the groups of a training step: how many taught nothing before and after a remedy."""

from __future__ import annotations

from dataclasses import dataclass

from art_langgraph import TrajectoryGroup
from art_langgraph.loop.sampling.informative import informative
from art_langgraph.loop.watch.record import StepRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCounts:
    """Counts of a step. A group is dead if its rewards are all the same: it teaches nothing.

    Args:
        drawn: Scenarios that the step drew.
        dead_before: Their groups that were dead without a remedy.
        informative: Groups that are not dead, with the runs and the scenarios that remedies added.
        dead: How many of the drawn groups the step lacks: neither these nor others in their place are informative, and
            no hint rescued them.
        runs: All runs that were made, those of remedies too.
    """

    drawn: int
    dead_before: int
    informative: int
    dead: int
    runs: int


def counted(record: StepRecord, n: int, success: float) -> GroupCounts:
    """Counts the groups of a step.

    Args:
        record: The step.
        n: Runs of each scenario without a remedy. They are the first of their group.
        success: The reward from which a run with a hint has solved its scenario.
    """
    drawn = record.groups[: len(record.groups) - record.replaced]
    before = [group.model_copy(update={"trajectories": group.trajectories[:n]}) for group in drawn]
    rescued = {run.scenario.id for run in record.hinted if run.reward is not None and run.reward >= success}
    taught = record.informative + sum(_rescued(group, rescued) for group in record.groups)
    return GroupCounts(
        drawn=len(drawn),
        dead_before=sum(not informative(group) for group in before),
        informative=record.informative,
        dead=max(0, len(drawn) - taught),
        runs=sum(len(group.trajectories) for group in record.groups) + len(record.hinted),
    )


def _rescued(group: TrajectoryGroup, solved: set[str]) -> bool:
    """Whether a dead group teaches something after all, since a hint solved its scenario."""
    return group.scenario.id in solved and not informative(group)
