"""The rollouts of a training step: scenarios are chosen and run, and runs are added where groups teach nothing."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import count
from typing import Any

from art_langgraph.client.client import TrainerClient
from art_langgraph.loop.batch import RolloutBatch
from art_langgraph.loop.graphs import GraphSource
from art_langgraph.loop.hints import HintPatience, Hints, Rescue, rescue
from art_langgraph.loop.pins import PinIgnored
from art_langgraph.loop.rollout import rollout, run_groups
from art_langgraph.loop.sampling.curriculum import Curriculum
from art_langgraph.loop.sampling.informative import Explorer, add_informative
from art_langgraph.loop.step_check import StepCheck, wait_until_ready
from art_langgraph.loop.train_options import TrainOptions
from art_langgraph.loop.tuning import Pace, Slots, run_seconds
from art_langgraph.trajectory import Scenario, Trajectory, TrajectoryGroup
from trainer_server.common import tracing
from trainer_server.wire import FOLLOW, LATEST, Job, JobStatus

log = logging.getLogger("art_langgraph")


class StepRollouts:
    """Makes the rollouts of one step after another, while nothing is trained.

    Args:
        options: Of the training.
        source: Of the graph.
        curriculum: Chooses the scenarios, and learns from their runs.
        limit: Bounds how many runs there are at once, together with those of evaluations.
    """

    def __init__(self, options: TrainOptions, source: GraphSource, curriculum: Curriculum, limit: Slots) -> None:
        self._options, self._source, self._curriculum, self._limit = options, source, curriculum, limit
        self._run_options = options.run_options()
        rewards_count = options.settings(options.first_step).rewards_count
        self._check = StepCheck(options.policy, options.nodes, options.retry_credit, rewards_count)
        self._hint_patience = None if options.hints is None else HintPatience(Hints.of(options.hints))
        self._explorer = None if options.explore is None else Explorer(options.explore)

    async def batches(self, steps: Sequence[int]) -> AsyncGenerator[RolloutBatch]:
        """The rollouts of each step, in their order. Closing it early cancels the rollouts that still run.

        Args:
            steps: Numbers of the steps.
        """
        for step in steps:
            yield await self.roll(step)

    def advance(self, version: int) -> None:
        """Takes note that a step has made its version; without a stream nothing waits for it."""

    async def roll(self, step: int) -> RolloutBatch:
        """The rollouts of a step, in the span of the step, which ends with the step.

        A step that the server accepted before a crash needs no rollouts: its batch has the job.

        Raises:
            RolloutsFailed: The step can learn nothing from its runs (`StepCheck.of_use`).
        """
        options = self._options
        attributes = {"art.policy": options.policy, "art.run": options.run, "art.step": step}
        span = tracing.begin(f"training step {step}", attributes)
        async with step_span(span):
            key, job = None, None
            if options.run:
                key, job = await find_accepted_step(options.client, options.policy, options.run, step)
            if job is None:
                batch = await self._run_step(step)
            else:
                self._curriculum.warn_of_unknown_runs()
                batch = RolloutBatch(step, job=job, seconds={"rollout": 0.0})
        batch.key, batch.span = key, span
        return batch

    async def _run_step(self, step: int) -> RolloutBatch:
        """Chooses scenarios for a step, runs them, and adds runs where some teach nothing."""
        options, curriculum, start = self._options, self._curriculum, time.monotonic()
        ready = curriculum.ready if step == options.first_step else []
        scenarios = curriculum.choose(step, options.groups_per_step - len(ready), ready)
        groups = ready + await self._run_all(step, scenarios)
        if self._check.unanswered(groups):
            log.warning("step %d: the trainer server answered in no run; when it is ready, they run once more", step)
            if await wait_until_ready(options.client, options.client.retry_for):
                groups = await self._run_all(step, scenarios)
        batch = RolloutBatch(step, groups, measured_count=len(ready))
        if self._check.of_use(step, groups):
            await self._add_runs(batch)
        curriculum.learn(batch.groups)
        seconds = batch.seconds["rollout"] = time.monotonic() - start
        reason = "slots" if self._limit.count < options.groups_per_step * options.n else "room"
        waits = {"groups": seconds, "slots": 0.0, "in_flight": 0.0, "room": 0.0, reason: seconds}
        batch.pace = Pace(self._limit.count, len(batch.groups), seconds, run_seconds(batch.groups), waits)
        return batch

    async def _add_runs(self, batch: RolloutBatch) -> None:
        """Adds runs to a step where all runs of a scenario got the same reward, or failed.

        First of the same scenarios at a higher temperature (`explore`), then of other scenarios (`dynamic_sampling`),
        then with a hint where no run succeeded (`hints`).
        """
        step = batch.step
        if self._explorer is not None:
            explore = self._explorer.settings
            run_hotter = partial(self._run_all, step, n=explore.n, temperature=explore.temperature)
            batch.groups, batch.exploration_count = await self._explorer.explore(run_hotter, batch.groups)
        first_added = len(batch.groups)
        batch.groups, batch.replacement_count = await add_informative(
            partial(self._run_all, step), batch.groups, partial(self._curriculum.choose, step), self._rounds(step)
        )
        self._check.check_added(step, batch.groups[first_added:])
        batch.rescue = await self._rescue(batch.groups)

    def _rounds(self, step: int) -> int:
        """How often a step replaces groups that teach nothing. Where a teacher scores every run, all of them teach."""
        distill = self._options.settings(step).distill
        return 0 if distill is not None and distill.teacher is not None else self._options.dynamic_sampling

    async def _rescue(self, groups: Sequence[TrajectoryGroup]) -> Rescue | None:
        """Runs the scenarios of which all runs failed with a hint; None: no hints are given."""
        if self._hint_patience is None or self._hint_patience.over:
            return None
        options = self._options
        result = await rescue(
            groups,
            self._hint_patience.hints,
            self._run_with_hint,
            policy=options.policy,
            client=options.client,
            max_concurrency=self._limit,
            group_reward=options.group_reward,
        )
        self._hint_patience.learn(result.counts)
        return result

    async def _run_all(
        self, step: int, scenarios: Sequence[Scenario], n: int | None = None, **changes: Any
    ) -> list[TrajectoryGroup]:
        """Runs each scenario as often as the options say, or `n` times. changes: keywords of `rollout`."""
        options = self._options
        return await run_groups(
            self._source,
            partial(self._run, **changes),
            scenarios,
            options.n if n is None else n,
            max_concurrency=self._limit,
            group_reward=options.group_reward,
            store=options.store,
            progress=f"step {step}: rollouts" if options.progress else False,
        )

    async def _run_with_hint(self, scenario: Scenario, hint: str) -> Trajectory:
        return await self._run(scenario, hints={self._options.policy: hint})

    async def _run(self, scenario: Scenario, **changes: Any) -> Trajectory:
        """One run for training. changes: keywords of `rollout`."""
        version = FOLLOW if self._options.pins == "follow" else LATEST
        run_options = {**self._run_options, "version": {self._options.policy: version}, **changes}
        try:
            return await rollout(self._source, scenario, self._options.reward, **run_options)
        except PinIgnored as error:  # one run among many: it counts as failed
            return error.trajectories[0]


async def find_accepted_step(client: TrainerClient, policy: str, run: str, step: int) -> tuple[str, Job | None]:
    """The idempotency key of a step of a named training run, and its job where the server has accepted it.

    The server takes a key once. A step whose job failed or was cancelled made no version, so that it gets another key.
    """
    for attempt in count(1):
        key = f"{run}-step-{step}" if attempt == 1 else f"{run}-step-{step}-attempt-{attempt}"
        job = await client.find_step(policy, key)
        if job is None or job.status not in (JobStatus.failed, JobStatus.cancelled):
            return key, job
        log.warning("step %d of %r: %s %s (%s); it is taken again", step, run, job.id, job.status.value, job.error)
    raise AssertionError("count() does not end")


@asynccontextmanager
async def step_span(span: tracing.Span) -> AsyncIterator[None]:
    """What happens in the context belongs to the span of a step. An error ends the span."""
    try:
        with tracing.within(span):
            yield
    except BaseException as error:
        span.fail(error)
        span.end()
        raise
