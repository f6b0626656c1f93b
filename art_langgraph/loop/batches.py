"""What each step of a training loop learns from: rollouts, one step after another, or ahead of the training."""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from art_langgraph.credit import group_refs
from art_langgraph.loop.rollout import ScenarioLike
from art_langgraph.trajectory import TrajectoryGroup
from trainer_server.wire import GroupRef, Job

_EQUAL = 1e-9
"""Rewards that differ by less teach nothing; the trainer's own measure."""


@dataclass(slots=True)
class Rolled:
    """The groups of a step. job: its training, where that was accepted before: then there are no groups. replaced: how
    many groups took the place of others that teach nothing. seconds: wall time of the rollouts."""

    step: int
    groups: list[TrajectoryGroup] = field(default_factory=list)
    job: Job | None = None
    replaced: int = 0
    seconds: float = 0.0


async def informative_groups(
    run: Callable[[Sequence[ScenarioLike]], Awaitable[list[TrajectoryGroup]]],
    scenarios: Sequence[ScenarioLike],
    spare: Sequence[ScenarioLike],
    rounds: int,
) -> tuple[list[TrajectoryGroup], int]:
    """Runs scenarios, and for those whose groups teach nothing others in their place, for at most so many rounds.

    spare: scenarios to take instead, in this order. Returns all groups, also those that teach nothing (the trainer
    leaves them out, and counts their rewards), and how many were added.
    """
    groups = await run(scenarios)
    wanted, left = len(scenarios), list(spare)
    for _ in range(rounds):
        missing = wanted - sum(map(informative, groups))
        if missing <= 0 or not left:
            break
        some, left = left[:missing], left[missing:]
        groups += await run(some)
    return groups, len(groups) - wanted


def informative(group: TrajectoryGroup) -> bool:
    """Whether runs can be told from one another by their rewards, or those of a node."""
    return any(_differs(one) for one in group_refs([group]))


def _differs(group: GroupRef) -> bool:
    rewards = [one.reward for one in group.trajectories if one.reward is not None]
    return len(rewards) > 1 and max(rewards) - min(rewards) > _EQUAL


def pick(scenarios: Sequence[ScenarioLike], count: int, step: int, seed: int | None) -> list[ScenarioLike]:
    """The scenarios of a step, each once per pass: in seeded shuffles, or in their order for None."""
    chosen: list[ScenarioLike] = []
    for position in range((step - 1) * count, step * count):
        epoch, at = divmod(position, len(scenarios))
        if seed is not None:
            at = random.Random(f"{seed}-{epoch}").sample(range(len(scenarios)), len(scenarios))[at]
        chosen.append(scenarios[at])
    return chosen


def spares(
    scenarios: Sequence[ScenarioLike], chosen: Sequence[ScenarioLike], step: int, seed: int
) -> list[ScenarioLike]:
    """All others, shuffled: what a step takes in place of scenarios that teach nothing."""
    taken = {id(one) for one in chosen}
    others = [one for one in scenarios if id(one) not in taken]
    return random.Random(f"{seed}-spare-{step}").sample(others, len(others))


async def ahead(
    steps: Sequence[int], roll: Callable[[int], Awaitable[Rolled]], staleness: int
) -> AsyncGenerator[Rolled]:
    """What `roll` gives for each step, in order. The rollouts of a step begin once the consumer has come back for more
    after the step that lies `staleness` + 1 before it, and no two steps roll at once: 0 takes turns, more lets rollouts
    and training overlap.

    Leaving the iterator early cancels rollouts that are under way.
    """

    async def after(previous: asyncio.Task[Rolled] | None, step: int) -> Rolled:
        if previous is not None:
            await asyncio.wait({previous})
        started = time.monotonic()
        rolled = await roll(step)
        rolled.seconds = time.monotonic() - started
        return rolled

    coming: deque[asyncio.Task[Rolled]] = deque()
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
