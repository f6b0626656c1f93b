"""The training loop: scenarios → rollouts → rewards → training step → evaluation."""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Any

from art_langgraph.client.servers import Capacity, find_capacity
from art_langgraph.client.step_marks import StepMarks
from art_langgraph.credit import Advantage, advantages_by_run
from art_langgraph.loop.batch import RolloutBatch
from art_langgraph.loop.evaluate import evaluate
from art_langgraph.loop.failures import runs_of
from art_langgraph.loop.graphs import GraphSource
from art_langgraph.loop.options import LoopOptions, keywords_of, values_of
from art_langgraph.loop.rollout import limit_of
from art_langgraph.loop.sampling.curriculum import Curriculum
from art_langgraph.loop.step_rollouts import StepRollouts, step_span
from art_langgraph.loop.stream_rollouts import StreamRollouts
from art_langgraph.loop.train_options import TrainOptions
from art_langgraph.loop.tuning import Slots, Tuner, Tuning
from art_langgraph.loop.watch.record import StepRecord
from art_langgraph.loop.watch.step_log import StepLog
from art_langgraph.loop.watch.watch import Watch
from art_langgraph.trajectory import Scenario, TrajectoryGroup
from trainer_server.wire import ConfigError, StepResult

log = logging.getLogger("art_langgraph")


@keywords_of(TrainOptions)
async def train(options: TrainOptions) -> AsyncIterator[StepRecord]:
    """Trains a policy on a graph, yielding after each step.

    With the uniform sampler, step i always takes the same scenarios for a seed. A run that continues at `first_step`
    therefore takes the same scenarios as a run without a break. With `max_staleness` above 0 they begin in that order,
    and the steps take the first groups that are complete. The learnable sampler looks at rewards: what it has
    seen is read from `store` when a run continues; without a store it begins anew, and a warning says so.

    The loop outlives a restart of the trainer server. Its own requests and the calls of ChatART are sent again for as
    long as `TrainerClient` and `ChatART` say, and a run whose graph lost the server in another way runs again. Warnings
    say so. `StepRecord.failures` has what failed nevertheless.

    Rollouts are sampled from the newest version, also where another one is promoted. A run keeps the version that it
    began with, unless `pins` says otherwise.

    With `max_staleness` above 0, a run that `timeout` ends without a reward is left out of its group where at most one
    of its `n` runs is missing then; otherwise it is made once more. A training that continues by `run` takes the groups
    from `store` that were complete and in no step.

    Yields:
        A record of each step.

    Raises:
        ConfigError: There are fewer scenarios than groups_per_step, or no reward, or a setting is out of its range; or
            a step of n=1 could learn nothing; or `run_config` names a thread, which all runs would share; or scenarios
            are trained on and held out; or a tracker cannot be made, because its library is missing, say; or
            `advantages` gave something that no run can be trained with.
        RolloutsFailed: In the first step, every run raised, or none has a reward, or none has a completion of the
            policy. Or this went on for three later steps in a row; single ones are sent, and warned of. Or the trainer
            server answered in no run of a later step, even after the client's `retry_for` seconds of waiting for it.
        JobFailed: A step failed on the server.
        ServerUnreachable: The server was gone for longer than the client's `retry_for`.
    """
    async with aclosing(TrainingLoop(options).run()) as records:
        async for record in records:
            yield record


class TrainingLoop:
    """One call of `train`.

    A step: `StepRollouts` chooses scenarios, runs them and scores the runs. `_step` sends the groups to the server,
    which makes a version of them. `Watch` evaluates the version on held-out scenarios, and says whether the run ends.
    `StepLog` adds the costs, and sends all of it to the trackers. With `max_staleness` above 0, `StreamRollouts` makes
    groups meanwhile, in place of `StepRollouts`.

    Args:
        options: Of the call.

    Raises:
        ConfigError: The options cannot be met.
    """

    def __init__(self, options: TrainOptions) -> None:
        self._options = options
        self._source, self._scenarios = GraphSource.of(options.graph), Scenario.each(options.scenarios)
        options.check(self._source, self._scenarios)
        self._source.policy, self._source.server = options.policy, options.client.connection
        self._run_options = options.run_options()
        if options.max_concurrency is not None:
            limit_of(options.max_concurrency)  # a wrong number is an error before anything runs
        self._tuning_key: str | None = None
        """What the store keeps the tuning of the run by; None: nothing is kept."""
        self._capacity: Capacity | None = None
        """Of the server, which is asked for it once; None: not yet."""
        self._watch = Watch(options)  # its time budget counts from here

    async def run(self) -> AsyncGenerator[StepRecord]:
        """Takes the steps, and yields after each."""
        options = self._options = await self._with_staleness()
        curriculum = await Curriculum.begin(
            options.make_sampler(),
            self._scenarios,
            policy=options.policy,
            temperature=options.temperature,
            client=options.client,
            store=options.store,
            measured_groups=options.measured,
        )
        if options.first_step > 1:
            curriculum.warn_of_unknown_runs()
        limit, tuner = await self._slots()
        if options.max_staleness:
            in_flight = options.in_flight or max(tuner.most if tuner else limit.count, options.groups_per_step)
            rollouts: StepRollouts = StreamRollouts(options, self._source, curriculum, limit, in_flight)
        else:
            rollouts = StepRollouts(options, self._source, curriculum, limit)
        step_log = StepLog(options.trackers, options.client)
        steps = range(options.first_step, options.steps + 1)
        batches = rollouts.batches(steps)
        async with step_log, self._watch, aclosing(batches):
            await step_log.begin(options.policy, options.run, self.record())
            measure = partial(evaluate, self._source, max_concurrency=limit, **self._run_options)
            await self._watch.begin(measure, self._scenarios)
            async for batch in batches:
                async with step_span(batch.span):
                    result = await self._step(batch)
                    if options.n == 1 and (why := result.metrics.get("skipped")):  # the next steps would be no better
                        raise ConfigError(
                            f"n=1: the step could learn nothing ({why}). The runs of a scenario are compared with each "
                            "other: give n=2 or more"
                        )
                    rollouts.advance(result.version)
                    record = _record(batch, result)
                    await self._watch.after(record, accepted_before=batch.job is not None)
                    if tuner is not None:
                        record.tuning = await tuner.add(batch.pace, overlaps_evaluation=self._overlaps(record))
                        await self._keep(record.tuning)
                    await step_log.add(record)
                batch.span.end()
                yield record
                if record.stopped is not None:
                    return
            if not steps:
                await self._watch.conclude()

    async def _with_staleness(self) -> TrainOptions:
        """The options with a `max_staleness`: that of the caller, or what suits the server."""
        if self._options.max_staleness is not None:
            return self._options
        overlaps = (await self._find_capacity()).overlaps
        if overlaps:
            log.info("max_staleness=1: engines and trainer have GPUs of their own. With 0 they take turns")
        return replace(self._options, max_staleness=int(overlaps))

    async def _find_capacity(self) -> Capacity:
        self._capacity = self._capacity or await find_capacity(self._options.client.connection)
        return self._capacity

    async def _slots(self) -> tuple[Slots, Tuner | None]:
        """The slots of the runs, and what tunes them; None: nothing does, or an earlier process of the run has done so.

        The engines may compute fewer requests at once than they did then.
        """
        options = self._options
        if not options.tune:
            return Slots(options.max_concurrency or (await self._find_capacity()).concurrency or 32), None
        capacity = (await options.client.health()).get("concurrency")
        runs = options.groups_per_step * options.n * (1 + (options.max_staleness or 0))
        limits = [limit for limit in (options.max_concurrency, capacity) if limit is not None]
        most = min(limits) if limits else max(32, runs)
        if options.run and options.store is not None:
            policy = await options.client.policy(options.policy)
            self._tuning_key = json.dumps([policy.name, policy.created, options.run])
            if (kept := await asyncio.to_thread(options.store.tuning, self._tuning_key)) is not None:
                log.info("%r was tuned before: max_concurrency=%d", options.run, min(kept, most))
                return Slots(min(kept, most)), None
        slots = Slots(most if limits else 32)
        return slots, Tuner(slots, most, settle=1 if options.max_staleness else 0)

    async def _keep(self, tuning: Tuning | None) -> None:
        """Keeps what was found for the process that continues the run, if there is one."""
        if tuning is not None and self._tuning_key is not None and self._options.store is not None:
            await asyncio.to_thread(self._options.store.set_tuning, self._tuning_key, tuning.max_concurrency)

    def _overlaps(self, record: StepRecord) -> bool:
        """Whether a step's evaluation had slots that groups would have had: not where each step has its share of it."""
        options = self._options
        return record.evaluation is not None and bool(options.max_staleness) and options.evaluate_every not in (1, 2)

    def record(self) -> dict[str, Any]:
        """What the trackers get of the options, as JSON."""
        options = self._options
        return {
            "scenarios": len(self._scenarios),
            "seed": options.seed,
            **values_of(options, LoopOptions),
            "grpo": options.settings(options.first_step).model_dump(mode="json"),
        }

    async def _step(self, batch: RolloutBatch) -> StepResult:
        """Sends a step, or waits for the one that the server has accepted before. Its runs are marked meanwhile."""
        options, key = self._options, batch.key or uuid.uuid4().hex
        advantages = None if batch.job is not None else await self._advantages(batch.groups)
        async with StepMarks(options.store, options.policy, key, runs_of(batch.groups)) as marks:
            if batch.job is not None:
                marks.result = await options.client.result(batch.job)
            else:
                marks.result = await options.client.train_step(
                    options.policy,
                    batch.groups,
                    options.settings(batch.step),
                    nodes=options.nodes,
                    retry_credit=options.retry_credit,
                    hints=batch.rescue.hints if batch.rescue else None,
                    advantages=advantages,
                    idempotency_key=key,
                )
        return marks.result

    async def _advantages(self, groups: Sequence[TrajectoryGroup]) -> dict[str, Advantage] | None:
        """The advantages of a step's runs, by id, that the user's function gives; None: there is no such function."""
        if self._options.advantages is None:
            return None
        values = self._options.advantages(groups)
        return advantages_by_run(groups, await values if inspect.isawaitable(values) else values)


def _record(batch: RolloutBatch, result: StepResult) -> StepRecord:
    """What a step did."""
    return StepRecord(
        batch.step,
        result,
        batch.groups,
        {**batch.seconds, "train": 0.0, "swap": 0.0, **result.metrics["job"]["seconds"]},
        batch.replacement_count,
        explored=batch.exploration_count,
        measured=batch.measured_count,
        ages=batch.ages,
        bound=batch.bound,
        drops=batch.drop_count,
        timeouts=batch.timeout_count,
        hints=batch.rescue.counts if batch.rescue else None,
        hinted=batch.rescue.runs if batch.rescue else [],
    )
