"""What a training step learns from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from art_langgraph.loop.hints import Rescue
from art_langgraph.loop.tuning import Pace
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
        timeout_count: How many runs were left out of groups because they had run over `timeout`.
        drop_count: How many complete groups were left out because they were too old.
        ages: How many of the groups are so many versions old.
        bound: What bounds the speed of the training, and what to change; None: it is not known.
        pace: How fast the step got its groups; None: it is not known, because it has groups of an earlier process, or
            because the step is the first that takes them from a stream, which waits in any case.
        rescue: What came of hints; None: none are given.
        seconds: Wall time by phase: `rollout`, from the first run's begin to the last one's end. With a stream also
            `wait`, for which the step waited for groups, and `slots`, for which its runs waited for slots on average.
        span: Lasts from the first rollout, or with a stream from when the step waits for groups, to the end of the
            step.
    """

    step: int
    groups: list[TrajectoryGroup] = field(default_factory=list)
    job: Job | None = None
    key: str | None = None
    replacement_count: int = 0
    exploration_count: int = 0
    measured_count: int = 0
    timeout_count: int = 0
    drop_count: int = 0
    ages: Mapping[int, int] = field(default_factory=dict)
    bound: str | None = None
    pace: Pace | None = None
    rescue: Rescue | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    span: tracing.Span = tracing.NOTHING
