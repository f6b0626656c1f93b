"""Marks stored runs as trained, so that no later step takes them again, also where this process is killed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from types import TracebackType
from typing import Self

from art_langgraph.client.client import TrainerClient
from art_langgraph.store import TrajectoryStore
from art_langgraph.trajectory import Trajectory
from trainer_server.wire import Job, JobFailed, StepResult


class StepMarks:
    """Marks the scored runs of a training step while it is sent and computed: `async with StepMarks(…) as marks:`.

    The runs are marked before the step is sent. They stay marked when it made a version. A step that failed, or that
    had nothing to learn from, frees them. Whatever else ends the block leaves the step open, because the server may
    have accepted it; `settle` looks it up later.

    Args:
        store: Where the runs are; None: nothing is marked.
        policy: Name of the trained policy.
        step: The idempotency key that the step is sent with.
        runs: The runs that the step trains. Empty: they were marked before, by a process that was interrupted.
    """

    def __init__(self, store: TrajectoryStore | None, policy: str, step: str, runs: Iterable[Trajectory]) -> None:
        self._store, self._policy, self._step = store, policy, step
        self._ids = [run.id for run in runs if run.scored and not run.untrained]
        self.result: StepResult | None = None
        """What the step did. Set it inside of the block."""

    async def __aenter__(self) -> Self:
        if self._store is not None and self._ids:
            await asyncio.to_thread(self._store.begin_step, self._policy, self._step, self._ids)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._store is not None and (self.result is not None or isinstance(error, JobFailed)):
            await asyncio.to_thread(self._store.end_step, self._policy, self._step, _created_version(self.result))


async def settle(
    client: TrainerClient, store: TrajectoryStore, policy: str, *, sending: str | None = None
) -> list[Job]:
    """Records what became of steps that were interrupted on this side.

    Args:
        client: The trainer server that they were sent to.
        store: Where their runs are.
        policy: Name of the policy.
        sending: Idempotency key of a step that another process may be sending just now. While the server does not know
            it, it stays open.

    Returns:
        The jobs that have not ended. Their runs stay marked.
    """
    running = []
    for step in await asyncio.to_thread(store.open_steps, policy):
        job = await client.find_step(policy, step)
        if job is not None and not job.status.final:
            running.append(job)
        elif job is not None or step != sending:
            version = _created_version(job.result if job is not None else None)
            await asyncio.to_thread(store.end_step, policy, step, version)
    return running


def _created_version(result: StepResult | None) -> int | None:
    """The version that a step made; None where it made none."""
    return None if result is None or result.metrics.get("skipped") else result.version
