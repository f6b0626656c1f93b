"""Makes the rollouts of each training step: between the steps, or prefetched during training."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from art_langgraph.loop.hints import Rescue
from art_langgraph.trajectory import TrajectoryGroup
from trainer_server.common import tracing
from trainer_server.wire import Job


@dataclass(slots=True)
class RolloutBatch:
    """The groups that a training step learns from.

    Args:
        step: Number of the step.
        groups: The runs; empty where the server has accepted the step before.
        job: The step's job, where the server has accepted the step before.
        key: The idempotency key to send the step with; None: a new one.
        replacement_count: How many groups were added because others teach nothing.
        exploration_count: How many runs were added at a higher temperature, because their groups taught nothing.
        measured_count: How many groups were made before the first step.
        rescue: What came of hints; None: none are given.
        seconds: Wall time of the rollouts.
        span: Lasts from the first rollout to the end of the step.
    """

    step: int
    groups: list[TrajectoryGroup] = field(default_factory=list)
    job: Job | None = None
    key: str | None = None
    replacement_count: int = 0
    exploration_count: int = 0
    measured_count: int = 0
    rescue: Rescue | None = None
    seconds: float = 0.0
    span: tracing.Span = tracing.NOTHING


async def prefetch_rollouts(
    steps: Sequence[int], roll: Callable[[int], Awaitable[RolloutBatch]], staleness: int
) -> AsyncGenerator[RolloutBatch]:
    """Makes the rollouts of each step and yields them in order, up to `staleness` steps before the consumer needs them.

    The rollouts of step i begin when the consumer asks for step i - staleness, and no two steps make rollouts at once.
    With 0, rollouts and training take turns; with more they overlap. Closing the iterator early cancels the rollouts
    that still run.

    Args:
        steps: Numbers of the steps.
        roll: Makes the rollouts of a step.
        staleness: How many steps the rollouts may be ahead.
    """
    alone, tasks = asyncio.Lock(), deque[asyncio.Task[RolloutBatch]]()  # the lock is fair: steps get it in their order
    try:
        for step in steps:
            tasks.append(asyncio.create_task(_roll(alone, roll, step), name="rollouts"))
            if len(tasks) > staleness:
                yield await tasks[0]
                tasks.popleft()
        while tasks:
            yield await tasks[0]
            tasks.popleft()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _roll(alone: asyncio.Lock, roll: Callable[[int], Awaitable[RolloutBatch]], step: int) -> RolloutBatch:
    """The rollouts of a step with their wall time, when those of the step before have ended."""
    async with alone:
        start = time.monotonic()
        batch = await roll(step)
        batch.seconds = time.monotonic() - start
        return batch
