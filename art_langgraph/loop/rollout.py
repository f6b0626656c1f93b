"""Runs graphs and functions on scenarios: `rollout` returns a trajectory, `gather` groups of trajectories."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeVar, get_args

from langchain_core.runnables import RunnableConfig
from langgraph.types import Command
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

from art_langgraph.background.reports import report, report_again
from art_langgraph.client.servers import find_capacity
from art_langgraph.loop.executors.base import Executor, RolloutTask
from art_langgraph.loop.executors.base import Resume as Resume
from art_langgraph.loop.executors.local import LocalExecutor
from art_langgraph.loop.executors.processes import ProcessExecutor
from art_langgraph.loop.failures import check_runs, runs_of, warn_unheard, warn_unscored
from art_langgraph.loop.graphs import Graph as Graph
from art_langgraph.loop.graphs import GraphSource
from art_langgraph.loop.options import ExecutorName, keywords_of, values_of
from art_langgraph.loop.pins import PinIgnored, check_version_asked
from art_langgraph.loop.threads import check_thread
from art_langgraph.progress import progress_bar
from art_langgraph.rewards import GroupReward, RewardFunction, check_callable, score, score_group
from art_langgraph.store import TrajectoryStore
from art_langgraph.trajectory import Scenario, Trajectory, TrajectoryGroup
from trainer_server.common import Connection, gen_ai, tracing
from trainer_server.common.extensions import load
from trainer_server.wire import ConfigError, VersionRef

T = TypeVar("T")

log = logging.getLogger("art_langgraph")

ScenarioLike = Scenario | dict[str, Any] | str | Command[Any]
"""A scenario, the text of a user's message, or a graph's input; see `Scenario.of`."""

Concurrency = int | asyncio.Semaphore
"""How many runs there are at once; a semaphore: together with the other calls that have it."""

REMOTE = "RemoteGraph"
"""Class of the graphs that another process runs."""


@dataclass(frozen=True, kw_only=True)
class RolloutOptions:
    """How a graph is run: keywords of `rollout`, `gather`, `evaluate`, `compare_versions` and `train`.

    Args:
        temperature: Sampling temperature of the policies, over what the graph hard-codes; None: the graph's.
        timeout: Seconds for a run of the graph, from when it is there, or for the function; running over is an error of
            the trajectory. A sync function goes on in its thread, and nothing waits for it.
        store: Where the runs are stored; None: nowhere.
        resume: Answers the graph's interrupts: it gets `[value]`, whose `id` is that of the interrupt, and returns the
            answer. Where several interrupts wait at once, it is called for each of them. The run also goes on from
            breakpoints (`interrupt_before`, `interrupt_after`), which ask nothing. Without it the run ends at either.
        metadata: Your data, kept in each trajectory.
        executor: Where the graph runs: "local", in this process; "processes", in worker processes, one for each
            processor; "ray", as tasks of a Ray cluster; or an Executor such as `ProcessExecutor(workers=4)` or
            `RayExecutor(num_cpus=2)`. The reward function, the store and the report are of this process in any case.
    """

    temperature: float | None = None
    timeout: float | None = None
    store: TrajectoryStore | None = None
    resume: Resume | None = None
    metadata: Mapping[str, Any] | None = None
    executor: Executor | ExecutorName = "local"


@dataclass(frozen=True, kw_only=True)
class RolloutArguments(RolloutOptions):
    """Arguments of `rollout`.

    Args:
        graph: A compiled graph, a function, or a factory that makes a graph for a scenario; see `Graph`.
        scenario: The task. A text is a user's message: the first message of a graph that takes messages. The answer to
            an interrupt (`Command(resume=…)`), or None, goes on with the thread of `config`, and the trajectory has the
            thread's scenario, as the store or the checkpointer knows it. The store reads such a run and the run that it
            resumes as a single trajectory; where there is no store, `first.resumed_by(second)` makes it.
        reward: Scores the run, also when the graph raised; None: the run has the reward that was set by
            `current_run().reward`, if any.
        config: LangChain's config of the run. Functions get none.
        version: Version of the policies that the graph asks, for all of them or by name; None: what their names mean,
            the promoted version or else the newest. `{"agent": "latest"}` is the newest in any case. The run keeps the
            version that it began with; with `{"agent": "follow"}` each call gets the newest one. A graph that names a
            version itself (`agent@3`) keeps it.
        evaluation: The run evaluates a version, and is never trained on.
        hints: By policy, a text that the trainer server puts into the prompts of this run. The run is never trained on.
        group: Names the runs that a training compares with this one; `Trajectory.group` has it. None: there are none.
    """

    graph: Graph | GraphSource = field(kw_only=False)
    scenario: ScenarioLike = field(kw_only=False)
    reward: RewardFunction | None = field(default=None, kw_only=False)
    config: RunnableConfig | None = None
    version: int | Mapping[str, VersionRef] | None = None
    evaluation: bool = False
    hints: Mapping[str, str] | None = None
    group: str | None = None


@keywords_of(RolloutArguments)
async def rollout(options: RolloutArguments) -> Trajectory:
    """Runs a graph, or a function that is the agent, on a scenario and records what it did.

    A function may use any client of the trainer server; see `current_run`. Its completions and tool calls are read from
    the server's ledger when it has returned, and what it returned is the trajectory's `output`. What is said here of
    graphs holds for functions too.

    When the graph raises, the trajectory has its `error` and everything that happened until then. All models of the
    graph that ask the trainer server use the same version of their policy during the whole rollout. A graph with a
    checkpointer gets a new thread unless `config` names a thread. A rollout inside a node of another rollout is a run
    of its own.

    When the graph raises because a model call lost its connection to the trainer server, or the server stopped
    in the middle of an answer, or the run's time is over because the server was gone, the run is repeated from its
    beginning as soon as the server is back, three times at most, and a warning says so. It is not repeated
    when the server stays away for two minutes (`ART_RETRY_FOR`), nor when `config` names a thread, which has the first
    attempt.

    Returns:
        The trajectory.

    Raises:
        ConfigError: The graph is not compiled, it does not take the scenario's input, the function takes something
            else than a scenario, or a declared factory raised. Nothing was run. Or a hint was given, and no trainer
            server is known.
        PinIgnored: Another version answered than `version`, or at another temperature than `temperature`: by a chat
            model that is neither ChatART nor LangChain's ChatOpenAI, or in a remote graph whose process does not
            record. The error has the trajectory, and the store too.
    """
    scenario, source = Scenario.of(options.scenario), GraphSource.of(options.graph)
    source.check([scenario])
    if source.answers and (options.config is not None or options.resume is not None):
        raise ConfigError(f"{source.name} is a function: config= and resume= are for graphs")

    reward, store = options.reward, options.store
    forms = {"scenario": scenario, "hints": options.hints or {}, "metadata": options.metadata or {}}
    task = RolloutTask(**values_of(options, RolloutTask) | forms)
    name, about = gen_ai.agent(source.name, scenario=scenario.id)
    with tracing.span(name, about) as span:
        result = await executor_of(options.executor).run(source, task)
        trajectory = result.trajectory
        trajectory.group = options.group
        if reward is None and (own := result.reward) is not None:
            reward = lambda _: own  # noqa: E731
        if reward is not None:
            await score(trajectory, reward)
            warn_unheard(trajectory, source.kind)
        _describe(span, trajectory)
        if store is not None:
            await asyncio.to_thread(store.add, trajectory, replaces=result.replaces)
        report(trajectory, result.servers, result.report_server)
        if result.problem is not None:
            raise PinIgnored(result.problem, trajectories=[trajectory])
        return trajectory


def _describe(span: tracing.Span, trajectory: Trajectory) -> None:
    """Says in the span of a rollout what came of it."""
    if span is tracing.NOTHING:
        return
    trajectory.traceparent = span.parent
    span.rename(gen_ai.agent(trajectory.graph_id)[0])
    span.set(
        {
            "gen_ai.agent.name": trajectory.graph_id,
            "gen_ai.conversation.id": trajectory.thread_id,
            "art.rollout.id": trajectory.rollout_id,
            "art.trajectory.id": trajectory.id,
            "art.evaluation": trajectory.evaluation,
        }
    )
    if trajectory.reward is not None:
        score = {"gen_ai.evaluation.name": "reward", "gen_ai.evaluation.score.value": trajectory.reward}
        span.event("gen_ai.evaluation.result", score)
    if trajectory.error is not None:
        span.fail(trajectory.error)


@dataclass(frozen=True, kw_only=True)
class GatherOptions(RolloutOptions):
    """How many runs are made: keywords of `gather`, `evaluate` and `compare_versions`.

    Args:
        max_concurrency: Runs at once. A semaphore is a limit that several calls share. None: as many requests as the
            server's engines compute at once, or 16 where they do not say.
        config: LangChain's config of each run. It names no thread, unless there is one run alone. Functions get none.
        progress: Shows a bar on a terminal; a string labels it.
    """

    max_concurrency: Concurrency | None = None
    config: RunnableConfig | None = None
    progress: bool | str = True


@dataclass(frozen=True, kw_only=True)
class GatherArguments(GatherOptions):
    """Arguments of `gather`.

    Args:
        graph: A compiled graph, a function, or a factory that makes a graph for a scenario.
        scenarios: The tasks.
        n: Runs of each scenario.
        reward: Scores each run.
        version: Version of the policies that the graph asks, for all of them or by name; None: what their names mean,
            the promoted version or else the newest.
        evaluation: Whether the runs evaluate a version. Such runs are never trained on.
        group_reward: Scores the runs of a scenario together (`Ruler`, `group_sum`), when all of them have ended and
            `reward`, if any, has scored each.
    """

    graph: Graph | GraphSource = field(kw_only=False)
    scenarios: Sequence[ScenarioLike] = field(kw_only=False)
    n: int = field(default=8, kw_only=False)
    reward: RewardFunction | None = field(default=None, kw_only=False)
    version: int | Mapping[str, int] | None = None
    evaluation: bool = False
    group_reward: GroupReward | None = None


@keywords_of(GatherArguments)
async def gather(options: GatherArguments) -> list[TrajectoryGroup]:
    """Runs a graph `n` times on each scenario. Cancelling it cancels all rollouts.

    When many runs raise, or all runs of a scenario, a warning has their number and the first error.

    Returns:
        A group for each scenario, in their order.

    Raises:
        ConfigError: As `rollout`, for n or max_concurrency below 1, and where `config` names a thread for several runs.
        RolloutsFailed: Every run raised before the trainer server answered in it. The error has the trajectories.
        PinIgnored: As `rollout`, for the first such run, which ends all; or `version` is given, and the trainer server
            answered in no run.
    """
    source, scenarios = GraphSource.of(options.graph), Scenario.each(options.scenarios)
    source.check(scenarios)
    check_callable(options.reward, options.group_reward)
    check_thread(options.config, runs=options.n * len(scenarios))
    run_options = values_of(options, RolloutOptions) | {"executor": executor_of(options.executor)}

    async def run(scenario: Scenario) -> Trajectory:
        return await rollout(
            source,
            scenario,
            options.reward,
            config=options.config,
            version=options.version,
            evaluation=options.evaluation,
            **run_options,
        )

    groups = await run_groups(
        source,
        run,
        scenarios,
        options.n,
        max_concurrency=await find_limit(options.max_concurrency, source.server, otherwise=16),
        group_reward=options.group_reward,
        store=options.store,
        progress=options.progress,
    )
    check_runs(groups)
    if options.reward is not None or options.group_reward is not None:
        warn_unscored(groups)
    if source.kind != REMOTE:
        check_version_asked(runs_of(groups), options.version)
    return groups


async def run_groups(
    source: GraphSource,
    run: Callable[[Scenario], Awaitable[Trajectory]],
    scenarios: Sequence[Scenario],
    n: int,
    *,
    max_concurrency: Concurrency,
    group_reward: GroupReward | None = None,
    store: TrajectoryStore | None = None,
    progress: bool | str = True,
) -> list[TrajectoryGroup]:
    """Runs each scenario `n` times, and scores a group as soon as its runs have ended.

    Args:
        source: The graph that runs.
        run: Makes one run of a scenario.
        scenarios: The tasks; one group for each, in order.
        n: Runs of each scenario.
        max_concurrency: Runs at once. A semaphore is a limit that several calls share.
        group_reward: Scores the runs of a scenario together, when all of them have ended; None: groups are not scored.
        store: Where the scores of groups are stored; None: nowhere.
        progress: Shows a bar on a terminal; a string labels it.

    Returns:
        A group for each scenario, in their order.

    Raises:
        ConfigError: n or max_concurrency is below 1.
    """
    if n < 1:
        raise ConfigError(f"n={n} must be at least 1")
    limit = limit_of(max_concurrency)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with progress_bar(*columns, shown=bool(progress)) as bar:
        label = progress if isinstance(progress, str) else "rollouts"
        running = bar.add_task(label, total=len(scenarios) * n)
        judging = bar.add_task(f"{label}: judged groups", total=len(scenarios)) if group_reward else None

        async def run_limited(scenario: Scenario) -> Trajectory:
            async with limit:
                trajectory = await run(scenario)
            bar.advance(running)
            return trajectory

        async def run_group(scenario: Scenario) -> TrajectoryGroup:
            runs = await run_all(run_limited(scenario) for _ in range(n))
            group = TrajectoryGroup(scenario=scenario, trajectories=runs)
            if group_reward is None or judging is None:
                return group
            group = await score_group(group, group_reward)
            for trajectory in group.trajectories:
                warn_unheard(trajectory, source.kind)
            if store is not None:
                await asyncio.to_thread(store.score_group, group)
            for trajectory in group.trajectories:
                report_again(trajectory)
            bar.advance(judging)
            return group

        return await run_all(run_group(scenario) for scenario in scenarios)


def executor_of(executor: Executor | ExecutorName) -> Executor:
    """An executor by its name; an executor is returned as it is. Raises ConfigError for another name."""
    if not isinstance(executor, str):
        return executor
    if executor not in get_args(ExecutorName):
        names = ", ".join(f'"{name}"' for name in get_args(ExecutorName))
        raise ConfigError(f"executor={executor!r} is unknown: give {names}, or an Executor such as RayExecutor()")
    return _create_executor(executor)


@cache
def _create_executor(name: ExecutorName) -> Executor:
    """One of each name in a process, so that workers are started, and a graph is sent to Ray, once."""
    if name == "ray":
        executor: Executor = load("art_langgraph.loop.executors.ray").RayExecutor()
        return executor
    return LocalExecutor() if name == "local" else ProcessExecutor()


async def find_limit(
    max_concurrency: Concurrency | None, server: Connection | None, *, otherwise: int
) -> asyncio.Semaphore:
    """As `limit_of`; None: the requests that the engines of a server compute at once.

    Args:
        max_concurrency: Runs at once.
        server: The server; None: the one that clients find.
        otherwise: Runs at once where no server says how many requests its engines compute.
    """
    if max_concurrency is None:
        max_concurrency = (await find_capacity(server)).concurrency or otherwise
    return limit_of(max_concurrency)


def limit_of(max_concurrency: Concurrency) -> asyncio.Semaphore:
    """The semaphore that bounds how many runs there are at once. Raises ConfigError for a number below 1."""
    if isinstance(max_concurrency, asyncio.Semaphore):
        return max_concurrency
    if max_concurrency < 1:
        raise ConfigError(f"max_concurrency={max_concurrency} must be at least 1")
    return asyncio.Semaphore(max_concurrency)


async def run_all(calls: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """What some calls return, in their order. They run at once; the first error cancels the others, and is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(call) for call in calls]
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]
