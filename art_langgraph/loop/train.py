"""The training loop: scenarios → rollouts → rewards → training step."""

from __future__ import annotations

import logging
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Literal

from langchain_core.runnables import RunnableConfig

from art_langgraph.client.client import TrainerClient
from art_langgraph.client.step_marks import StepMarks
from art_langgraph.credit import RetryCredit
from art_langgraph.loop.evaluate import evaluate
from art_langgraph.loop.executors.base import Executor
from art_langgraph.loop.executors.registry import ExecutorName, executor_of
from art_langgraph.loop.failures import runs_of
from art_langgraph.loop.graphs import Graph, GraphSource
from art_langgraph.loop.hints.rescue import HintFunction, HintPatience, Hints, rescue
from art_langgraph.loop.pins import PinIgnored
from art_langgraph.loop.prefetch import RolloutBatch, prefetch_rollouts
from art_langgraph.loop.rollout import Resume, ScenarioLike, limit_of, rollout, run_groups
from art_langgraph.loop.sampling.curriculum import Curriculum
from art_langgraph.loop.sampling.exploration import Exploration, Explorer
from art_langgraph.loop.sampling.informative import add_informative
from art_langgraph.loop.sampling.learnable import LearnableSampler
from art_langgraph.loop.sampling.sampler import Sampler
from art_langgraph.loop.sampling.uniform import UniformSampler
from art_langgraph.loop.step_check import StepCheck, wait_until_ready
from art_langgraph.loop.threads import check_thread
from art_langgraph.loop.watch.alarm_rules import AlarmRules
from art_langgraph.loop.watch.held_out import HeldOut
from art_langgraph.loop.watch.record import StepRecord
from art_langgraph.loop.watch.step_log import StepLog
from art_langgraph.loop.watch.stopping import StopRule
from art_langgraph.loop.watch.watch import Watch
from art_langgraph.rewards import GroupReward, RewardFunction, check_callable
from art_langgraph.store import TrajectoryStore
from art_langgraph.trajectory import Scenario, Trajectory, TrajectoryGroup
from trainer_server.wire import ConfigError, GRPOConfig, Job, JobStatus
from trainer_server.wire.trackers import Tracker
from trainer_server.wire.watching import tracing

log = logging.getLogger("art_langgraph")


async def train(
    graph: Graph,
    scenarios: Sequence[ScenarioLike],
    *,
    policy: str,
    reward: RewardFunction | None = None,
    group_reward: GroupReward | None = None,
    steps: int,
    client: TrainerClient,
    groups_per_step: int = 4,
    n: int = 8,
    config: GRPOConfig | Callable[[int], GRPOConfig] | None = None,
    sampler: Sampler | Literal["uniform", "learnable"] = "uniform",
    measured: Sequence[TrajectoryGroup] = (),
    explore: Exploration | None = None,
    dynamic_sampling: int = 0,
    max_staleness: int = 0,
    hints: HintFunction | Hints | None = None,
    nodes: Sequence[str] | None = None,
    retry_credit: RetryCredit = "drop",
    max_concurrency: int = 32,
    temperature: float | None = 1.0,
    timeout: float | None = None,
    store: TrajectoryStore | None = None,
    resume: Resume | None = None,
    run_config: RunnableConfig | None = None,
    metadata: Mapping[str, Any] | None = None,
    shuffle: bool = True,
    seed: int = 0,
    run: str = "",
    first_step: int = 1,
    held_out: HeldOut | Sequence[ScenarioLike] | str | Path | None = None,
    evaluate_every: int | None = None,
    stop_when: StopRule | Sequence[StopRule] | None = None,
    keep_best: bool = False,
    alarms: AlarmRules | None = None,
    trackers: Sequence[str | Tracker] | None = None,
    executor: Executor | ExecutorName = "local",
    progress: bool = True,
) -> AsyncIterator[StepRecord]:
    """Trains a policy on a graph, yielding after each step.

    With the uniform sampler, step i always takes the same scenarios for a seed. A run that continues at `first_step`
    therefore takes the same scenarios as a run without a break. The learnable sampler looks at rewards: what it has
    seen is read from `store` when a run continues; without a store it begins anew, and a warning says so.

    The loop outlives a restart of the trainer server. Its own requests and the calls of ChatART are sent again for as
    long as `TrainerClient` and `ChatART` say, and a run whose graph lost the server in another way runs again. Warnings
    say so. `StepRecord.failures` has what failed nevertheless.

    Rollouts are sampled from the newest version, also where another one is promoted.

    Args:
        graph: A compiled graph, a function, or a factory that makes a graph for a scenario.
        scenarios: The tasks to learn from.
        policy: The policy to train; the graph asks it through ChatART.
        reward: Scores single runs. Either `reward` or `group_reward` is needed, unless a function sets the reward of
            its runs (`current_run().reward`), or only a teacher counts (`config.distill` with `rewards=False`).
        group_reward: Scores the runs of a scenario together (`Ruler`).
        steps: Number of the last step.
        client: The trainer server.
        groups_per_step: Scenarios of a step.
        n: Runs of each scenario.
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
        temperature: Sampling temperature of the policies, over what the graph hard-codes; None: the graph's.
        timeout: Seconds for a run of the graph.
        store: Where the runs are stored, and marked as trained, so that `art-langgraph train --from-store` leaves them
            out; None: nowhere.
        resume: Answers the graph's interrupts; see `rollout`.
        run_config: LangChain's config of each run; `rollout` calls it `config`. It names no thread.
        metadata: Your data, kept in each trajectory.
        shuffle: The uniform sampler draws scenarios in random order. Without it they are taken in the order given, so
            that you choose which scenarios a step gets.
        seed: Seeds the sampler.
        run: Name of the training run, which makes its steps idempotent: a step that the server accepted before a crash
            is not taken again, and its record has no groups. A step that failed there, or was cancelled, is taken
            again. Empty: no such names.
        first_step: Number of the first step.
        held_out: Scenarios that are never trained on, a JSONL file of them, or a HeldOut, which says how they are
            measured. The version that the run begins with is evaluated on them, and the last one. Kept in `store`, an
            evaluation is not made again by a run that is continued.
        evaluate_every: Steps between two further evaluations; None: there are no others.
        stop_when: Ends the run early: `TargetReached`, `Plateau`, `TimeBudget`, `TokenBudget`, a function of the
            records, or several of these, of which the first that holds ends it. `StepRecord.stopped` says why.
        keep_best: The version with the highest held-out success is promoted at the end: the policy's name means it.
            `StepRecord.best` of the last step has it. It is never deleted. Versions that were the best before, or are
            promoted, are measured too.
        alarms: Thresholds of `StepRecord.alarms`; None: the defaults.
        trackers: Who is told of the steps, in the background: names such as "wandb" (`CLIENT_TRACKERS`), places
            `module:Class`, or objects with the methods of `Tracker`. None: those that `ART_TRACKERS` in the environment
            names, if any. A tracker that fails stops nothing; a warning says so.
        executor: Where the graph runs, in training and evaluation: "local", in this process; "ray", as tasks of a Ray
            cluster; or an Executor.
        progress: Shows a bar on a terminal.

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
    source, tasks = GraphSource.of(graph), Scenario.each(scenarios)

    def settings(step: int) -> GRPOConfig:
        return config(step) if callable(config) else config or GRPOConfig()

    rewards_count = settings(first_step).rewards_count
    if reward is None and group_reward is None and not source.may_answer and rewards_count:
        raise ConfigError("train() needs reward=… or group_reward=…: without one there is nothing to learn from")
    if groups_per_step < 1 or first_step < 1:
        raise ConfigError(f"groups_per_step={groups_per_step} and first_step={first_step} must be at least 1")
    if len(tasks) < groups_per_step:
        raise ConfigError(
            f"{len(tasks)} scenarios are fewer than groups_per_step={groups_per_step}, the scenarios of a step: give "
            "more scenarios"
            + (f", or groups_per_step={len(tasks)} (on the command line --groups-per-step)" if tasks else "")
        )
    if max_staleness < 0 or dynamic_sampling < 0:
        raise ConfigError(f"max_staleness={max_staleness} and dynamic_sampling={dynamic_sampling} must be 0 or more")
    if explore is not None and temperature is not None and explore.temperature <= temperature:
        raise ConfigError(
            f"explore: its temperature={explore.temperature} must be above that of the training, {temperature}"
        )
    source.check(tasks)
    check_callable(reward, group_reward)
    check_thread(run_config, runs=groups_per_step * n * steps, name="run_config")
    where, limit = executor_of(executor), limit_of(max_concurrency)
    source.policy = policy
    source.server = client.connection
    check = StepCheck(policy, nodes, retry_credit, rewards_count)
    helping = HintPatience(Hints.of(hints)) if hints is not None else None
    watch = Watch.of(
        policy,
        client,
        first_step,
        steps,
        held_out=held_out,
        evaluate_every=evaluate_every,
        stop_when=stop_when,
        keep_best=keep_best,
        alarms=alarms,
    )
    measure = partial(
        evaluate,
        source,
        max_concurrency=limit,
        timeout=timeout,
        store=store,
        resume=resume,
        config=run_config,
        metadata=metadata,
        executor=where,
    )
    curriculum = await Curriculum.begin(
        _sampler(sampler, policy, n, seed, shuffle),
        tasks,
        policy=policy,
        temperature=temperature,
        client=client,
        store=store,
        measured_groups=measured,
    )
    if first_step > 1:
        curriculum.step_was_taken()
    explorer = None if explore is None else Explorer(explore)

    async def run_scenario(
        scenario: Scenario, *, temperature: float | None = temperature, hint: str | None = None
    ) -> Trajectory:
        try:
            return await rollout(
                source,
                scenario,
                reward,
                temperature=temperature,
                config=run_config,
                timeout=timeout,
                store=store,
                resume=resume,
                version={policy: "latest"},
                metadata=metadata,
                hints={policy: hint} if hint is not None else None,
                executor=where,
            )
        except PinIgnored as error:  # one run among many: it counts as failed
            return error.trajectories[0]

    async def run_all(
        step: int, step_scenarios: Sequence[Scenario], n: int = n, temperature: float | None = temperature
    ) -> list[TrajectoryGroup]:
        return await run_groups(
            source,
            partial(run_scenario, temperature=temperature),
            step_scenarios,
            n,
            max_concurrency=limit,
            group_reward=group_reward,
            store=store,
            progress=f"step {step}: rollouts" if progress else False,
        )

    async def roll(step: int) -> RolloutBatch:
        key, job = await _find_accepted_job(client, policy, run, step) if run else (None, None)
        if job is not None:
            curriculum.step_was_taken()
            return RolloutBatch(step, job=job, key=key)
        ready = curriculum.ready if step == first_step else []
        chosen = curriculum.choose(step, groups_per_step - len(ready), ready)
        groups = ready + await run_all(step, chosen)
        if check.unanswered(groups):
            log.warning("step %d: the trainer server answered in no run; when it is ready, they run once more", step)
            if await wait_until_ready(client, client.retry_for):
                groups = await run_all(step, chosen)
        explored = replaced = 0
        rescued = None
        if check.of_use(step, groups):
            if explorer is not None:
                again = partial(run_all, step, n=explorer.settings.n, temperature=explorer.settings.temperature)
                groups, explored = await explorer.explore(again, groups)
            made, choose = len(groups), partial(curriculum.choose, step)
            rounds = 0 if _taught(settings(step)) else dynamic_sampling  # with a teacher, equal rewards teach too
            groups, replaced = await add_informative(partial(run_all, step), groups, choose, rounds)
            check.check_added(step, groups[made:])
            if helping is not None and not helping.over:
                rescued = await rescue(
                    groups,
                    helping.hints,
                    lambda scenario, hint: run_scenario(scenario, hint=hint),
                    policy=policy,
                    client=client,
                    max_concurrency=limit,
                    group_reward=group_reward,
                )
                helping.learn(rescued.counts)
        curriculum.learn(groups)
        return RolloutBatch(
            step,
            groups,
            key=key,
            replacement_count=replaced,
            exploration_count=explored,
            measured_count=len(ready),
            rescue=rescued,
        )

    async def roll_traced(step: int) -> RolloutBatch:
        span = tracing.begin(f"training step {step}", {"art.policy": policy, "art.run": run, "art.step": step})
        try:
            with tracing.within(span):
                batch = await roll(step)
        except BaseException as error:
            span.fail(error)
            span.end()
            raise
        batch.span = span
        return batch

    step_log = StepLog(trackers, client)
    batches = prefetch_rollouts(range(first_step, steps + 1), roll_traced, max_staleness)
    async with step_log, watch, aclosing(batches):
        known = {"scenarios": len(tasks), "steps": steps, "groups_per_step": groups_per_step, "n": n, "seed": seed}
        await step_log.begin(policy, run, {**known, "grpo": settings(first_step).model_dump(mode="json")})
        await watch.begin(
            measure, tasks, reward=reward, group_reward=group_reward, store=store, run=run, progress=progress
        )
        async for batch in batches:
            key = batch.key or uuid.uuid4().hex
            async with StepMarks(store, policy, key, runs_of(batch.groups)) as marks, _ending(batch.span):
                if batch.job is None:
                    result = await client.train_step(
                        policy,
                        batch.groups,
                        settings(batch.step),
                        nodes=nodes,
                        retry_credit=retry_credit,
                        hints=batch.rescue.hints if batch.rescue else None,
                        idempotency_key=key,
                    )
                else:
                    result = await client.result(batch.job)
                marks.result = result
            phases = result.metrics["job"]["seconds"]
            seconds = {"rollout": batch.seconds, "train": 0.0, "swap": 0.0, **phases}
            record = StepRecord(
                batch.step,
                result,
                batch.groups,
                seconds,
                batch.replacement_count,
                explored=batch.exploration_count,
                measured=batch.measured_count,
                hints=batch.rescue.counts if batch.rescue else None,
                hinted=batch.rescue.runs if batch.rescue else [],
            )
            async with _ending(batch.span):
                await watch.after(record, taken=batch.job is not None)
                await step_log.add(record)
            batch.span.end()
            yield record
            if record.stopped is not None:
                return
        if first_step > steps:
            await watch.conclude()


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


def _sampler(
    sampler: Sampler | Literal["uniform", "learnable"], policy: str, n: int, seed: int, shuffle: bool
) -> Sampler:
    """The sampler that an argument of `train` names."""
    if sampler == "uniform":
        return UniformSampler(seed, shuffle)
    if sampler == "learnable":
        return LearnableSampler(policy, n=n, seed=seed)
    if isinstance(sampler, str):
        raise ConfigError(f"sampler={sampler!r}: give 'uniform', 'learnable', or an object with the methods of Sampler")
    return sampler


async def _find_accepted_job(client: TrainerClient, policy: str, run: str, step: int) -> tuple[str, Job | None]:
    """The idempotency key of a step, and its job where the server has accepted it.

    The server takes a key once. A step whose job failed or was cancelled made no version, so that it gets another key.
    """
    for attempt in count(1):
        key = f"{run}-step-{step}" if attempt == 1 else f"{run}-step-{step}-attempt-{attempt}"
        job = await client.find_step(policy, key)
        if job is None or job.status not in (JobStatus.failed, JobStatus.cancelled):
            return key, job
        log.warning("step %d of %r: %s %s (%s); it is taken again", step, run, job.id, job.status.value, job.error)
    raise AssertionError("count() does not end")
