"""The training loop: scenarios → rollouts → rewards → training step."""

from __future__ import annotations

import logging
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any

from langchain_core.runnables import RunnableConfig

from art_langgraph.client.client import TrainerClient
from art_langgraph.client.step_marks import StepMarks
from art_langgraph.credit import RetryCredit
from art_langgraph.loop.failures import failures_of, runs_of, versions_of
from art_langgraph.loop.graphs import Graph, GraphSource
from art_langgraph.loop.hints.rescue import HintCounts, HintFunction, Hints, rescue
from art_langgraph.loop.pins import PinIgnored
from art_langgraph.loop.prefetch import RolloutBatch, add_informative, pick, prefetch_rollouts, replacements
from art_langgraph.loop.rollout import Resume, ScenarioLike, rollout, run_groups
from art_langgraph.loop.step_check import StepCheck, wait_until_ready
from art_langgraph.rewards import GroupReward, RewardFunction
from art_langgraph.store import TrajectoryStore
from art_langgraph.trajectory import Scenario, Trajectory, TrajectoryGroup
from trainer_server.wire import ConfigError, GRPOConfig, Job, JobStatus, StepResult

log = logging.getLogger("art_langgraph")


@dataclass(slots=True)
class StepRecord:
    """What a turn of the training loop did.

    Args:
        step: Number of the step.
        result: The version that the step made, and its metrics; `metrics["skipped"]` says why it made none.
        groups: The runs that were sent; empty where the server accepted the step before a crash.
        seconds: Wall time by phase: `rollout`, `train`, `swap`; `teacher` where the server asked for scores or prompts.
        replaced: How many groups were added because others have equal rewards, which teach nothing.
        hints: What hints did; None: `train` gives none.
        hinted: The runs with a hint, which were not sent.
    """

    step: int
    result: StepResult
    groups: list[TrajectoryGroup] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    replaced: int = 0
    hints: HintCounts | None = None
    hinted: list[Trajectory] = field(default_factory=list)

    @property
    def reward(self) -> float | None:
        """Mean over all trajectories that have a reward."""
        mean: float | None = self.result.metrics.get("reward_mean")
        return mean

    @property
    def prefix_drift(self) -> float | None:
        """Share of the sampled tokens that the next prompt of their run does not have; None where no run has turns."""
        share: float | None = self.result.metrics.get("prefix_drift")
        return share

    @property
    def teacher_kl(self) -> float | None:
        """Mean of log π − log teacher over the tokens that a teacher scored, in nats; None where there is none."""
        mean: float | None = self.result.metrics.get("teacher_kl")
        return mean

    @property
    def skipped(self) -> str | None:
        """Why the step made no new version; None where it made a version."""
        reason: str | None = self.result.metrics.get("skipped")
        return reason

    @property
    def versions(self) -> dict[str, list[int]]:
        """The versions that answered in the step's runs, by policy."""
        return versions_of(runs_of(self.groups))

    @property
    def failures(self) -> str | None:
        """How many of the step's runs raised and how many have no reward, each with the first error. None: no run."""
        return failures_of(runs_of(self.groups))

    def __str__(self) -> str:
        reward = "no reward" if self.reward is None else f"mean reward {self.reward:.3f}"
        head = f"step {self.step}: version {self.result.version}, {reward}"
        if (drift := self.prefix_drift) is not None:
            head += f", prefix drift {drift:.1%}"
        hints = str(self.hints) if self.hints is not None and self.hints.failed else None
        parts = [head, hints, self.skipped, self.failures]
        return "; ".join(filter(None, parts))


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
    progress: bool = True,
) -> AsyncIterator[StepRecord]:
    """Trains a policy on a graph, yielding after each step.

    Step i always takes the same scenarios for a seed. A run that continues at `first_step` therefore takes the same
    scenarios as a run without a break.

    The loop outlives a restart of the trainer server. Its own requests and the calls of ChatART are sent again for as
    long as `TrainerClient` and `ChatART` say, and a run whose graph lost the server in another way runs again. Warnings
    say so. `StepRecord.failures` has what failed nevertheless.

    Args:
        graph: As that of `rollout`.
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
        dynamic_sampling: How often a step runs further scenarios in place of those whose runs all got the same reward,
            which teach nothing; 0: never.
        max_staleness: How many versions a step's completions may be behind. With 0, rollouts and training take turns.
            With more, rollouts of later steps run during training, which saves time where the engine and the trainer
            do not share a processor.
        hints: Where all runs of a scenario fail, makes a hint of the scenario and of these runs, and the scenario runs
            once more with the hint in the policy's prompts. If that succeeds, the policy without the hint learns from
            the policy with it, at the tokens of the runs that failed. `Hints` has settings; `config.distill` the
            weight. None: no hints.
        nodes: As those of `TrainerClient.train_step`.
        retry_credit: As that of `TrainerClient.train_step`.
        max_concurrency: Runs at once.
        temperature: Sampling temperature of the policies, over what the graph hard-codes; None: the graph's.
        timeout: Seconds for a run of the graph.
        store: Where the runs are stored, and marked as trained, so that `art-langgraph train --from-store` leaves them
            out; None: nowhere.
        resume: Answers the graph's interrupts; see `rollout`.
        run_config: LangChain's config of each run; `rollout` calls it `config`.
        metadata: Your data, kept in each trajectory.
        shuffle: Draw scenarios in random order. Without it they are taken in the order given, so that you choose which
            scenarios a step gets.
        seed: Seeds that order.
        run: Name of the training run, which makes its steps idempotent: a step that the server accepted before a crash
            is not taken again, and its record has no groups. A step that failed there, or was cancelled, is taken
            again. Empty: no such names.
        first_step: Number of the first step.
        progress: Shows a bar on a terminal.

    Yields:
        A record of each step.

    Raises:
        ConfigError: There are fewer scenarios than groups_per_step, or no reward, or a setting is out of its range.
        RolloutsFailed: In the first step, every run raised, or none has a reward, or none has a completion of the
            policy. Or this went on for three later steps in a row; single ones are sent, and warned of. Or the trainer
            server answered in no run of a later step, even after the client's `retry_for` seconds of waiting for it.
        JobFailed: A step failed on the server.
        ServerUnreachable: The server was gone for longer than the client's `retry_for`.
    """
    source, tasks = GraphSource.of(graph), [Scenario.of(scenario) for scenario in scenarios]
    settings = config if callable(config) else lambda _: config or GRPOConfig()
    rewards_count = settings(first_step).rewards_count
    if reward is None and group_reward is None and not source.may_answer and rewards_count:
        raise ConfigError("train() needs reward=… or group_reward=…: without one there is nothing to learn from")
    if groups_per_step < 1 or first_step < 1:
        raise ConfigError(f"groups_per_step={groups_per_step} and first_step={first_step} must be at least 1")
    if len(scenarios) < groups_per_step:
        raise ConfigError(f"{len(scenarios)} scenarios are fewer than groups_per_step={groups_per_step}")
    if max_staleness < 0 or dynamic_sampling < 0:
        raise ConfigError(f"max_staleness={max_staleness} and dynamic_sampling={dynamic_sampling} must be 0 or more")
    source.check(tasks)
    source.policy = policy
    if source.function is not None:
        source.server = client.connection
    check = StepCheck(policy, nodes, retry_credit, rewards_count)
    helping = Hints.of(hints) if hints is not None else None

    async def run_scenario(scenario: Scenario, hint: str | None = None) -> Trajectory:
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
                metadata=metadata,
                hints={policy: hint} if hint is not None else None,
            )
        except PinIgnored as error:  # one run among many: it counts as failed
            return error.trajectories[0]

    async def run_all(step: int, chosen: Sequence[ScenarioLike]) -> list[TrajectoryGroup]:
        return await run_groups(
            source,
            run_scenario,
            [Scenario.of(scenario) for scenario in chosen],
            n,
            max_concurrency=max_concurrency,
            group_reward=group_reward,
            store=store,
            progress=f"step {step}: rollouts" if progress else False,
        )

    async def roll(step: int) -> RolloutBatch:
        key, job = await _accepted(client, policy, run, step) if run else (None, None)
        if job is not None:
            return RolloutBatch(step, job=job, key=key)
        chosen = pick(tasks, groups_per_step, step, seed if shuffle else None)
        others = replacements(tasks, chosen, step, seed)
        groups = await run_all(step, chosen)
        if check.unanswered(groups):
            log.warning("step %d: the trainer server answered in no run; when it is ready, they run once more", step)
            if await wait_until_ready(client, client.retry_for):
                groups = await run_all(step, chosen)
        replaced = 0
        rescued = None
        if check.of_use(step, groups):
            if not _taught(settings(step)):  # with a teacher, groups of equal rewards teach too
                groups, replaced = await add_informative(partial(run_all, step), groups, others, dynamic_sampling)
                check.added(step, groups[len(chosen) :])
            if helping is not None:
                rescued = await rescue(
                    groups,
                    helping,
                    run_scenario,
                    policy=policy,
                    client=client,
                    max_concurrency=max_concurrency,
                    group_reward=group_reward,
                )
        return RolloutBatch(step, groups, key=key, replaced=replaced, rescue=rescued)

    async with aclosing(prefetch_rollouts(range(first_step, steps + 1), roll, max_staleness)) as batches:
        async for batch in batches:
            key = batch.key or uuid.uuid4().hex
            async with StepMarks(store, policy, key, runs_of(batch.groups)) as marks:
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
            counts, hinted = (batch.rescue.counts, batch.rescue.runs) if batch.rescue else (None, [])
            yield StepRecord(batch.step, result, batch.groups, seconds, batch.replaced, counts, hinted)


def _taught(config: GRPOConfig) -> bool:
    """Whether a teacher scores every run of a step."""
    return config.distill is not None and config.distill.teacher is not None


async def _accepted(client: TrainerClient, policy: str, run: str, step: int) -> tuple[str, Job | None]:
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
