"""Whether a group teaches something, and other scenarios in place of those whose groups do not."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from art_langgraph.credit import group_refs
from art_langgraph.trajectory import Scenario, TrajectoryGroup
from trainer_server.wire import GroupRef

_EQUAL = 1e-9
"""Rewards that differ by less count as equal, as in the trainer."""


def informative(group: TrajectoryGroup) -> bool:
    """Whether a group teaches something: its rewards differ, or those of a node. Otherwise the group is dead."""
    return any(map(_differs, group_refs([group])))


def _differs(group: GroupRef) -> bool:
    rewards = [run.reward for run in group.trajectories if run.reward is not None]
    return len(rewards) > 1 and max(rewards) - min(rewards) > _EQUAL


async def add_informative(
    run: Callable[[Sequence[Scenario]], Awaitable[list[TrajectoryGroup]]],
    groups: Sequence[TrajectoryGroup],
    choose: Callable[[int, Sequence[TrajectoryGroup]], Sequence[Scenario]],
    rounds: int,
) -> tuple[list[TrajectoryGroup], int]:
    """Runs other scenarios in place of those whose groups teach nothing.

    Args:
        run: Makes the groups of some scenarios.
        groups: The groups of the step.
        choose: Takes how many scenarios are missing and the groups that there are, and gives other scenarios; fewer, or
            none, where there are no more.
        rounds: How often scenarios are replaced, at most.

    Returns:
        All groups, and how many were added. Groups that teach nothing are included: the trainer leaves them out, and
        counts their rewards.
    """
    collected = list(groups)
    for _ in range(rounds):
        missing = len(groups) - sum(map(informative, collected))
        if missing <= 0 or not (others := choose(missing, collected)):
            break
        collected += await run(others)
    return collected, len(collected) - len(groups)
