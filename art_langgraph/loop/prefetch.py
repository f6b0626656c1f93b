"""Makes the rollouts of each training step: between the steps, or prefetched during training."""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from art_langgraph.credit import group_refs
from art_langgraph.loop.hints.rescue import Rescue
from art_langgraph.loop.rollout import ScenarioLike
from art_langgraph.trajectory import TrajectoryGroup
from trainer_server.wire import GroupRef, Job

_EQUAL = 1e-9
"""Rewards that differ by less count as equal, as in the trainer."""


@dataclass(slots=True)
class RolloutBatch:
    """The groups that a training step learns from.

    Args:
        step: Number of the step.
        groups: The runs; empty where the server has accepted the step before.
        job: The step's job, where the server has accepted the step before.
        key: The idempotency key to send the step with; None: a new one.
        replaced: How many groups were added because others teach nothing.
        rescue: What came of hints; None: none are given.
        seconds: Wall time of the rollouts.
    """

    step: int
    groups: list[TrajectoryGroup] = field(default_factory=list)
    job: Job | None = None
    key: str | None = None
    replaced: int = 0
    rescue: Rescue | None = None
    seconds: float = 0.0


async def add_informative(
    run: Callable[[Sequence[ScenarioLike]], Awaitable[list[TrajectoryGroup]]],
    groups: Sequence[TrajectoryGroup],
    others: Sequence[ScenarioLike],
    rounds: int,
) -> tuple[list[TrajectoryGroup], int]:
    """Runs other scenarios in place of those whose groups teach nothing.

    Args:
        run: Makes the groups of some scenarios.
        groups: The groups of the step.
        others: Scenarios to take instead, in this order.
        rounds: How often scenarios are replaced, at most.

    Returns:
        All groups, and how many were added. Groups that teach nothing are included: the trainer leaves them out, and
        counts their rewards.
    """
    found, left = list(groups), list(others)
    for _ in range(rounds):
        missing = len(groups) - sum(map(informative, found))
        if missing <= 0 or not left:
            break
        found += await run(left[:missing])
        left = left[missing:]
    return found, len(found) - len(groups)


def informative(group: TrajectoryGroup) -> bool:
    """Whether a group teaches something: its rewards differ, or those of a node."""
    return any(map(_differs, group_refs([group])))


def _differs(group: GroupRef) -> bool:
    rewards = [run.reward for run in group.trajectories if run.reward is not None]
    return len(rewards) > 1 and max(rewards) - min(rewards) > _EQUAL


def pick(scenarios: Sequence[ScenarioLike], count: int, step: int, seed: int | None) -> list[ScenarioLike]:
    """The scenarios of a step. A pass takes each scenario once.

    Args:
        scenarios: All scenarios.
        count: Scenarios of a step.
        step: Number of the step, from 1 on.
        seed: Seeds the order of each pass; None: the order given.
    """
    chosen: list[ScenarioLike] = []
    for position in range((step - 1) * count, step * count):
        epoch, at = divmod(position, len(scenarios))
        if seed is not None:
            at = random.Random(f"{seed}-{epoch}").sample(range(len(scenarios)), len(scenarios))[at]
        chosen.append(scenarios[at])
    return chosen


def replacements(
    scenarios: Sequence[ScenarioLike], chosen: Sequence[ScenarioLike], step: int, seed: int
) -> list[ScenarioLike]:
    """All scenarios that a step has not chosen, shuffled, to replace those that teach nothing.

    Args:
        scenarios: All scenarios.
        chosen: The scenarios of the step.
        step: Number of the step.
        seed: Seeds the order, together with the step.
    """
    taken = set(map(id, chosen))
    others = [scenario for scenario in scenarios if id(scenario) not in taken]
    return random.Random(f"{seed}-spare-{step}").sample(others, len(others))


async def prefetch_rollouts(
    steps: Sequence[int], roll: Callable[[int], Awaitable[RolloutBatch]], staleness: int
) -> AsyncGenerator[RolloutBatch]:
    """Makes the rollouts of each step and yields them in order, up to `staleness` steps before they are asked for.

    The rollouts of step i begin when the consumer asks for step i - staleness, and no two steps make rollouts at once.
    With 0, rollouts and training take turns; with more they overlap. Closing the iterator early cancels the rollouts
    that still run.

    Args:
        steps: Numbers of the steps.
        roll: Makes the rollouts of a step.
        staleness: How many steps the rollouts may be ahead.
    """

    async def after(previous: asyncio.Task[RolloutBatch] | None, step: int) -> RolloutBatch:
        if previous is not None:
            await asyncio.wait({previous})
        started = time.monotonic()
        rolled = await roll(step)
        rolled.seconds = time.monotonic() - started
        return rolled

    coming: deque[asyncio.Task[RolloutBatch]] = deque()
    left = deque(steps)

    def start() -> None:
        if left:
            previous = coming[-1] if coming else None
            coming.append(asyncio.create_task(after(previous, left.popleft()), name="rollouts"))

    try:
        for _ in range(staleness + 1):
            start()
        while coming:
            yield await coming[0]
            coming.popleft()
            start()
    finally:
        for task in coming:
            task.cancel()
        await asyncio.gather(*coming, return_exceptions=True)
