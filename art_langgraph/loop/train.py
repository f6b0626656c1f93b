"""The training loop: scenarios → rollouts → rewards → training step."""

from __future__ import annotations

import logging
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any, Literal

from langchain_core.runnables import RunnableConfig

from art_langgraph.client.client import TrainerClient
from art_langgraph.client.step_marks import StepMarks
from art_langgraph.credit import RetryCredit
from art_langgraph.loop.evaluate import evaluate
from art_langgraph.loop.executors.registry import executor_of
from art_langgraph.loop.failures import runs_of
from art_langgraph.loop.graphs import Graph, GraphSource
from art_langgraph.loop.hints.rescue import HintFunction, HintPatience, Hints, rescue
from art_langgraph.loop.options import LoopOptions, keywords_of, values_of
from art_langgraph.loop.pins import PinIgnored
from art_langgraph.loop.prefetch import RolloutBatch, prefetch_rollouts
from art_langgraph.loop.rollout import RolloutOptions, ScenarioLike, limit_of, rollout, run_groups
from art_langgraph.loop.sampling.curriculum import Curriculum
from art_langgraph.loop.sampling.exploration import Exploration, Explorer
from art_langgraph.loop.sampling.informative import add_informative
from art_langgraph.loop.sampling.learnable import LearnableSampler
from art_langgraph.loop.sampling.sampler import Sampler
from art_langgraph.loop.sampling.uniform import UniformSampler
from art_langgraph.loop.step_check import StepCheck, wait_until_ready
from art_langgraph.loop.threads import check_thread
from art_langgraph.loop.watch.record import StepRecord
from art_langgraph.loop.watch.step_log import StepLog
from art_langgraph.loop.watch.watch import Watch, WatchOptions
from art_langgraph.rewards import GroupReward, RewardFunction, check_callable
from art_langgraph.trajectory import Scenario, Trajectory, TrajectoryGroup
from trainer_server.common import tracing
from trainer_server.tracking import Tracker
from trainer_server.wire import ConfigError, GRPOConfig, Job, JobStatus, StepResult

log = logging.getLogger("art_langgraph")


@dataclass(frozen=True, kw_only=True)
class TrainOptions(WatchOptions, RolloutOptions):
    """Arguments of `train`.

    Args:
        graph: A compiled graph, a function, or a factory that makes a graph for a scenario.
        scenarios: The tasks to learn from.
        policy: The policy to train; the graph asks it through ChatART.
        client: The trainer server.
        reward: Scores single runs. Either `reward` or `group_reward` is needed, unless a function sets the reward of
            its runs (`current_run().reward`), or only a teacher counts (`config.distill` with `rewards=False`).
        group_reward: Scores the runs of a scenario together (`Ruler`).
        config: Settings of every step, or a function of its number, for schedules.
        sampler: Which scenarios a step gets. "uniform": all equally often. "learnable": those whose runs will most
            likely get unequal rewards, by what their runs came to until now (`LearnableSampler`). Or your own
            `Sampler`.
        measured: Runs of the scenarios that were made and scored before, such as those of `gather`. The sampler learns
            from those at `temperature`. The first step learns from the informative groups among them that the newest
            version sampled and that are no evaluation, and makes rollouts only for what is missing.
        explore: Runs scenarios whose runs all got the same reward again at a higher temperature, up to a budget. It
            comes before `dynamic_sampling`. None: never.
        dynamic_sampling: How often a step runs further scenarios in place of those whose runs all got the same reward,
            which teach nothing; 0: never.
        max_staleness: How many versions a step's completions may be behind. With 0, rollouts and training take turns.
            With more, rollouts of later steps run during training, which saves time where the engine and the trainer
            do not share a processor.
        hints: Where all runs of a scenario fail, makes a hint of the scenario and of these runs, and the scenario runs
            once more with the hint in the policy's prompts. If that succeeds, the policy without the hint learns from
            the policy with it, at the tokens of the runs that failed. `Hints` has settings; `config.distill` the
            weight. None: no hints.
        nodes: Patterns of the node paths to train ("planner", "worker/*"); None: all.
        retry_credit: Whether attempts of a node before an error retry are trained ("train") or left out ("drop").
        max_concurrency: Runs at once: those of training, of evaluations and with hints together.
        store: Where the runs are stored, and marked as trained, so that `art-langgraph train --from-store` leaves them
            out; None: nowhere.
        run_config: LangChain's config of each run; `rollout` calls it `config`. It names no thread.
        shuffle: The uniform sampler draws scenarios in random order. Without it they are taken in the order given, so
            that you choose which scenarios a step gets.
        seed: Seeds the sampler.
        trackers: Who is told of the steps, in the background: names such as "wandb" (`CLIENT_TRACKERS`), places
            `module:Class`, or objects with the methods of `Tracker`. None: those that `ART_TRACKERS` in the environment
            names, if any. A tracker that fails stops nothing; a warning says so.
        progress: Shows a bar on a terminal.
    """

    graph: Graph = field(kw_only=False)
    scenarios: Sequence[ScenarioLike] = field(kw_only=False)
    policy: str
    client: TrainerClient
    reward: RewardFunction | None = None
    group_reward: GroupReward | None = None
    config: GRPOConfig | Callable[[int], GRPOConfig] | None = None
    sampler: Sampler | Literal["uniform", "learnable"] = "uniform"
    measured: Sequence[TrajectoryGroup] = ()
    explore: Exploration | None = None
    dynamic_sampling: int = 0
    max_staleness: int = 0
    hints: HintFunction | Hints | None = None
    nodes: Sequence[str] | None = None
    retry_credit: RetryCredit = "drop"
    max_concurrency: int = 32
    temperature: float | None = 1.0
    run_config: RunnableConfig | None = None
    shuffle: bool = True
    seed: int = 0
    trackers: Sequence[str | Tracker] | None = None
    progress: bool = True

    def settings(self, step: int) -> GRPOConfig:
        """The settings of a step, by its number."""
        return self.config(step) if callable(self.config) else self.config or GRPOConfig()


@keywords_of(TrainOptions)
async def train(options: TrainOptions) -> AsyncIterator[StepRecord]:
    """Trains a policy on a graph, yielding after each step.

    With the uniform sampler, step i always takes the same scenarios for a seed. A run that continues at `first_step`
    therefore takes the same scenarios as a run without a break. The learnable sampler looks at rewards: what it has
    seen is read from `store` when a run continues; without a store it begins anew, and a warning says so.

    The loop outlives a restart of the trainer server. Its own requests and the calls of ChatART are sent again for as
    long as `TrainerClient` and `ChatART` say, and a run whose graph lost the server in another way runs again. Warnings
    say so. `StepRecord.failures` has what failed nevertheless.

    Rollouts are sampled from the newest version, also where another one is promoted.

    Yields:
        A record of each step.

    Raises:
        ConfigError: There are fewer scenarios than groups_per_step, or no reward, or a setting is out of its range; or
            `run_config` names a thread, which all runs would share; or scenarios are trained on and held out; or a
            tracker cannot be made, because its library is missing, say.
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
    """One call of `train`: scenarios → rollouts → rewards → step → evaluation.

    Args:
        options: What was asked for.

    Raises:
        ConfigError: As `train`.
    """

    def __init__(self, options: TrainOptions) -> None:
        self._options = options
        self._source, self._scenarios = GraphSource.of(options.graph), Scenario.each(options.scenarios)
        rewards_count = options.settings(options.first_step).rewards_count
        _check(options, self._source, self._scenarios, rewards_count=rewards_count)
        self._source.policy, self._source.server = options.policy, options.client.connection
        self._limit = limit_of(options.max_concurrency)
        self._run_options = values_of(options, RolloutOptions) | {
            "config": options.run_config,
            "executor": executor_of(options.executor),
        }
        self._step_check = StepCheck(options.policy, options.nodes, options.retry_credit, rewards_count)
        self._hint_patience = None if options.hints is None else HintPatience(Hints.of(options.hints))
        self._explorer = None if options.explore is None else Explorer(options.explore)
        self._watch = Watch.of(options, options.policy, options.client)

    async def run(self) -> AsyncGenerator[StepRecord]:
        """Takes the steps, and yields after each."""
        options = self._options
        self._curriculum = await Curriculum.begin(
            _sampler(options),
            self._scenarios,
            policy=options.policy,
            temperature=options.temperature,
            client=options.client,
            store=options.store,
            measured_groups=options.measured,
        )
        if options.first_step > 1:
            self._curriculum.step_was_taken()
        step_log = StepLog(options.trackers, options.client)
        steps = range(options.first_step, options.steps + 1)
        batches = prefetch_rollouts(steps, self._roll_traced, options.max_staleness)
        async with step_log, self._watch, aclosing(batches):
            await step_log.begin(options.policy, options.run, self.record())
            await self._watch.begin(
                partial(evaluate, self._source, max_concurrency=self._limit, **self._run_options),
                self._scenarios,
                reward=options.reward,
                group_reward=options.group_reward,
                store=options.store,
                run=options.run,
                progress=options.progress,
            )
            async for batch in batches:
                async with _ending(batch.span):
                    record = _record(batch, await self._step(batch))
                    await self._watch.after(record, taken=batch.job is not None)
                    await step_log.add(record)
                batch.span.end()
                yield record
                if record.stopped is not None:
                    return
            if not steps:
                await self._watch.conclude()

    def record(self) -> dict[str, Any]:
        """What the trackers are told of the options, as JSON."""
        options = self._options
        return {
            "scenarios": len(self._scenarios),
            "seed": options.seed,
            **values_of(options, LoopOptions),
            "grpo": options.settings(options.first_step).model_dump(mode="json"),
        }

    async def _roll_traced(self, step: int) -> RolloutBatch:
        """The rollouts of a step, in the span of the step, which ends with the step."""
        about = {"art.policy": self._options.policy, "art.run": self._options.run, "art.step": step}
        span = tracing.begin(f"training step {step}", about)
        async with _ending(span):
            batch = await self._roll(step)
        batch.span = span
        return batch

    async def _roll(self, step: int) -> RolloutBatch:
        """Chooses scenarios for a step, runs them, and adds runs where some teach nothing."""
        options, curriculum = self._options, self._curriculum
        key, job = await self._find_accepted_job(step) if options.run else (None, None)
        if job is not None:
            curriculum.step_was_taken()
            return RolloutBatch(step, job=job, key=key)
        ready = curriculum.ready if step == options.first_step else []
        chosen = curriculum.choose(step, options.groups_per_step - len(ready), ready)
        groups = ready + await self._run_all(step, chosen)
        if self._step_check.unanswered(groups):
            log.warning("step %d: the trainer server answered in no run; when it is ready, they run once more", step)
            if await wait_until_ready(options.client, options.client.retry_for):
                groups = await self._run_all(step, chosen)
        batch = RolloutBatch(step, groups, key=key, measured_count=len(ready))
        if self._step_check.of_use(step, groups):
            await self._enrich(batch)
        curriculum.learn(batch.groups)
        return batch

    async def _enrich(self, batch: RolloutBatch) -> None:
        """Adds runs to a step where all runs of a scenario got the same reward, or failed."""
        options, step = self._options, batch.step
        if self._explorer is not None:
            settings = self._explorer.settings
            again = partial(self._run_all, step, n=settings.n, temperature=settings.temperature)
            batch.groups, batch.exploration_count = await self._explorer.explore(again, batch.groups)
        before, choose = len(batch.groups), partial(self._curriculum.choose, step)
        run = partial(self._run_all, step)
        rounds = 0 if _taught(options.settings(step)) else options.dynamic_sampling  # taught, equal rewards teach too
        batch.groups, batch.replacement_count = await add_informative(run, batch.groups, choose, rounds)
        self._step_check.check_added(step, batch.groups[before:])
        if self._hint_patience is not None and not self._hint_patience.over:
            batch.rescue = await rescue(
                batch.groups,
                self._hint_patience.hints,
                lambda scenario, hint: self._run_scenario(scenario, hints={options.policy: hint}),
                policy=options.policy,
                client=options.client,
                max_concurrency=self._limit,
                group_reward=options.group_reward,
            )
            self._hint_patience.learn(batch.rescue.counts)

    async def _run_all(
        self, step: int, scenarios: Sequence[Scenario], n: int | None = None, **changes: Any
    ) -> list[TrajectoryGroup]:
        """Runs each scenario as often as the options say, or `n` times. changes: keywords of `rollout`."""
        options = self._options
        return await run_groups(
            self._source,
            partial(self._run_scenario, **changes),
            scenarios,
            options.n if n is None else n,
            max_concurrency=self._limit,
            group_reward=options.group_reward,
            store=options.store,
            progress=f"step {step}: rollouts" if options.progress else False,
        )

    async def _run_scenario(self, scenario: Scenario, **changes: Any) -> Trajectory:
        """One run for training. changes: keywords of `rollout`."""
        run_options = {**self._run_options, "version": {self._options.policy: "latest"}, **changes}
        try:
            return await rollout(self._source, scenario, self._options.reward, **run_options)
        except PinIgnored as error:  # one run among many: it counts as failed
            return error.trajectories[0]

    async def _step(self, batch: RolloutBatch) -> StepResult:
        """Sends a step, or waits for the one that the server has accepted before. Its runs are marked meanwhile."""
        options, key = self._options, batch.key or uuid.uuid4().hex
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
                    idempotency_key=key,
                )
        return marks.result

    async def _find_accepted_job(self, step: int) -> tuple[str, Job | None]:
        """The idempotency key of a step, and its job where the server has accepted it.

        The server takes a key once. A step whose job failed or was cancelled made no version, so that it gets another
        key.
        """
        run = self._options.run
        for attempt in count(1):
            key = f"{run}-step-{step}" if attempt == 1 else f"{run}-step-{step}-attempt-{attempt}"
            job = await self._options.client.find_step(self._options.policy, key)
            if job is None or job.status not in (JobStatus.failed, JobStatus.cancelled):
                return key, job
            log.warning("step %d of %r: %s %s (%s); it is taken again", step, run, job.id, job.status.value, job.error)
        raise AssertionError("count() does not end")


def _check(options: TrainOptions, source: GraphSource, scenarios: Sequence[Scenario], *, rewards_count: bool) -> None:
    """Raises ConfigError for options that cannot be met."""
    groups_per_step, first_step = options.groups_per_step, options.first_step
    if options.reward is None and options.group_reward is None and not source.may_answer and rewards_count:
        raise ConfigError("train() needs reward=… or group_reward=…: without one there is nothing to learn from")
    if groups_per_step < 1 or first_step < 1:
        raise ConfigError(f"groups_per_step={groups_per_step} and first_step={first_step} must be at least 1")
    if len(scenarios) < groups_per_step:
        raise ConfigError(
            f"{len(scenarios)} scenarios are fewer than groups_per_step={groups_per_step}, the scenarios of a step: "
            "give more scenarios"
            + (f", or groups_per_step={len(scenarios)} (on the command line --groups-per-step)" if scenarios else "")
        )
    if options.max_staleness < 0 or options.dynamic_sampling < 0:
        raise ConfigError(
            f"max_staleness={options.max_staleness} and dynamic_sampling={options.dynamic_sampling} must be 0 or more"
        )
    explore, temperature = options.explore, options.temperature
    if explore is not None and temperature is not None and explore.temperature <= temperature:
        raise ConfigError(
            f"explore: its temperature={explore.temperature} must be above that of the training, {temperature}"
        )
    source.check(scenarios)
    check_callable(options.reward, options.group_reward)
    check_thread(options.run_config, runs=groups_per_step * options.n * options.steps, name="run_config")


def _record(batch: RolloutBatch, result: StepResult) -> StepRecord:
    """What a step did."""
    return StepRecord(
        batch.step,
        result,
        batch.groups,
        {"rollout": batch.seconds, "train": 0.0, "swap": 0.0, **result.metrics["job"]["seconds"]},
        batch.replacement_count,
        explored=batch.exploration_count,
        measured=batch.measured_count,
        hints=batch.rescue.counts if batch.rescue else None,
        hinted=batch.rescue.runs if batch.rescue else [],
    )


@asynccontextmanager
async def _ending(span: tracing.Span) -> AsyncIterator[None]:
    """What happens in the context belongs to the span of a step, which an error ends."""
    try:
        with tracing.within(span):
            yield
    except BaseException as error:
        span.fail(error)
        span.end()
        raise


def _taught(config: GRPOConfig) -> bool:
    """Whether a teacher scores every run of a step."""
    return config.distill is not None and config.distill.teacher is not None


def _sampler(options: TrainOptions) -> Sampler:
    """The sampler that the options name."""
    sampler = options.sampler
    if sampler == "uniform":
        return UniformSampler(options.seed, options.shuffle)
    if sampler == "learnable":
        return LearnableSampler(options.policy, n=options.n, seed=options.seed)
    if isinstance(sampler, str):
        raise ConfigError(f"sampler={sampler!r}: give 'uniform', 'learnable', or an object with the methods of Sampler")
    return sampler
