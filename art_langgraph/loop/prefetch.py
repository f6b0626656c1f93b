"""Makes the rollouts of each training step: between the steps, or prefetched during training."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from art_langgraph.loop.hints.rescue import Rescue
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
