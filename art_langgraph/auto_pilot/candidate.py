"""A candidate: one training step on recorded runs, from the promoted version. It is sent once, whatever happens."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from art_langgraph.auto_pilot.state import State
from art_langgraph.client.client import TrainerClient
from art_langgraph.client.step_marks import StepMarks
from art_langgraph.credit import Comparison
from art_langgraph.loop.watch.record import StepRecord
from art_langgraph.loop.watch.signals import Signals
from art_langgraph.store import TrajectoryStore
from art_langgraph.trajectory import Trajectory, TrajectoryGroup
from trainer_server.wire import GRPOConfig, Job, JobFailed, ServerError, StepResult


async def train_candidate(
    client: TrainerClient,
    store: TrajectoryStore,
    state: State,
    comparison: Comparison,
    job: Job | None,
    *,
    config: GRPOConfig | None,
) -> StepResult | None:
    """Takes the step of a state, or waits for the one that an earlier process has sent.

    Args:
        client: The trainer server.
        store: Where the runs of the step are marked as trained: `begin_step` was called.
        state: Has the step's key, and the version that it goes on from.
        comparison: The runs of the step.
        job: The step, where the server has accepted it before.
        config: Settings of the step.

    Returns:
        The version that it made, or why it made none; None where there is nothing to compare.

    Raises:
        JobFailed: The step failed, or the server refused it. Its runs are free for another one.
    """
    if job is None and not comparison.groups:
        await asyncio.to_thread(store.end_step, state.policy, state.key, None)
        return None
    async with StepMarks(store, state.policy, state.key, comparison.trained_runs if job is None else []) as marks:
        if job is None:
            try:
                job = await client.submit(
                    state.policy,
                    comparison.groups,
                    config,
                    from_version=state.champion,
                    idempotency_key=state.key,
                )
            except ServerError as error:
                if may_succeed_later(error):
                    raise
                raise JobFailed(f"the server refused the step: {error}", job_id="") from error
        marks.result = result = await client.result(job)
    return result


def may_succeed_later(error: ServerError) -> bool:
    """Whether the same request may succeed later: the server is busy or has a fault."""
    return error.status == 429 or error.status >= 500


def step_figures(step: int, result: StepResult, runs: Sequence[Trajectory]) -> Signals:
    """The figures of a step that alarms are raised by.

    Args:
        step: Its number.
        result: What it did.
        runs: The runs that it was given.
    """
    return Signals.of(StepRecord(step, result, TrajectoryGroup.by_scenario(list(runs))))
