"""Runs graphs and functions on scenarios: `rollout` returns a trajectory, `gather` groups of trajectories."""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, cast

from langchain_core.runnables import Runnable, RunnableConfig
from langgraph.pregel.remote import RemoteException
from langgraph.types import Command
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

from art_langgraph.capture.graph_run import resumed_state
from art_langgraph.capture.handler import ARTCallbackHandler
from art_langgraph.capture.handover import handed_over
from art_langgraph.capture.remote.calls import attach
from art_langgraph.capture.remote.home import bring_home
from art_langgraph.capture.scope import Scope, recording
from art_langgraph.client.reports import report, report_again
from art_langgraph.client.servers import known_servers
from art_langgraph.loop import threads
from art_langgraph.loop.failures import check_runs, runs_of, warn_unheard
from art_langgraph.loop.graphs import Graph as Graph
from art_langgraph.loop.graphs import GraphSource, NotStarted, Output, graph_input
from art_langgraph.loop.lost_server import REPEATS, server_is_back
from art_langgraph.loop.pins import PinIgnored, check_version_asked, ignored
from art_langgraph.programs.clients import tie_clients
from art_langgraph.programs.environment import found_by_clients
from art_langgraph.programs.ledger import add_ledger, register
from art_langgraph.programs.run import Run, running
from art_langgraph.progress import progress_bar
from art_langgraph.rewards import GroupReward, RewardFunction, score, score_group
from art_langgraph.store import TrajectoryStore
from art_langgraph.trajectory import Scenario, Trajectory, TrajectoryGroup
from trainer_server.wire import ARTError, ConfigError, VersionRef
from trainer_server.wire.watching import gen_ai, tracing

log = logging.getLogger("art_langgraph")

ScenarioLike = Scenario | dict[str, Any] | str | Command[Any]
"""A scenario, the text of a user's message, or a graph's input; see `Scenario.of`."""

REMOTE = "RemoteGraph"
"""Class of the graphs that another process runs."""

Resume = Callable[[list[Any]], Any]
"""Answers interrupts: takes their values, returns the value to resume the run with, or an awaitable of it."""


async def rollout(
    graph: Graph | GraphSource,
    scenario: ScenarioLike,
    reward: RewardFunction | None = None,
    *,
    temperature: float | None = None,
    config: RunnableConfig | None = None,
    timeout: float | None = None,
    store: TrajectoryStore | None = None,
    resume: Resume | None = None,
    version: int | Mapping[str, VersionRef] | None = None,
    evaluation: bool = False,
    metadata: Mapping[str, Any] | None = None,
    hints: Mapping[str, str] | None = None,
) -> Trajectory:
    """Runs a graph, or a function that is the agent, on a scenario and records what it did.

    A function may use any client of the trainer server; see `current_run`. Its completions and tool calls are read from
    the server's ledger when it has returned, and what it returned is the trajectory's `output`. What is said here of
    graphs holds for functions too.

    When the graph raises, the trajectory has its `error` and everything that happened until then. All models of the
    graph that ask the trainer server use the same version of their policy during the whole rollout. A graph with a
    checkpointer gets a new thread unless `config` names a thread. A rollout inside a node of another rollout is a run
    of its own.

    When the graph raises because a model call lost its connection to the trainer server, or the server was told to stop
    in the middle of an answer, or the run's time is over because the server was gone, the run is repeated from its
    beginning as soon as the server is back, three times at most, and a warning says so. It is not repeated
    when the server stays away for two minutes (`ART_RETRY_FOR`), nor when `config` names a thread, which has the first
    attempt.

    Args:
        graph: A compiled graph, a function, or a factory that makes a graph for a scenario; see `Graph`.
        scenario: The task. A text is a user's message: the first message of a graph that takes messages. The answer to
            an interrupt (`Command(resume=…)`), or None, goes on with the thread of `config`, and the trajectory has the
            thread's scenario, as the store or the checkpointer knows it. The store reads such a run and the run that it
            resumes as a single trajectory; where there is no store, `first.resumed_by(second)` makes it.
        reward: Scores the run, also when the graph raised; None: the run has the reward that was set by
            `current_run().reward`, if any.
        temperature: Sampling temperature of the policies, over what the graph hard-codes; None: the graph's.
        config: LangChain's config of the run. Functions get none.
        timeout: Seconds for the graph, from when it is there, or for the function; running over is an error of the
            trajectory. A sync function goes on in its thread, and nothing waits for it.
        store: Where the trajectory is kept as well.
        resume: Answers the graph's interrupts, given as a list. The run also goes on from breakpoints
            (`interrupt_before`, `interrupt_after`), which ask nothing. Without it the run ends at either.
        version: Version of the policies that the graph asks, for all of them or by name; None: what their names mean,
            the promoted version or else the newest. `{"agent": "latest"}` is the newest in any case. A graph that names
            a version itself (`agent@3`) keeps it.
        evaluation: The run evaluates a version, and is never trained on.
        metadata: Your data, kept in the trajectory.
        hints: By policy, a text that the trainer server puts into the prompts of this run. The run is never trained on.

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
    scenario, source = Scenario.of(scenario), GraphSource.of(graph)
    source.check([scenario])
    if source.answers and (config is not None or resume is not None):
        raise ConfigError(f"{source.name} is a function: config= and resume= are for graphs")

    async def attempt() -> _Attempt:
        return await _run(
            source,
            scenario,
            Scope(temperature=temperature, version=version, hints=hints or {}),
            config=config,
            timeout=timeout,
            store=store,
            resume=resume,
            evaluation=evaluation,
            metadata=metadata,
        )

    name, about = gen_ai.agent(source.name, scenario=scenario.id)
    with tracing.span(name, about) as traced:
        began = time.monotonic()
        last = await attempt()
        for _ in range(REPEATS):
            if (
                last.error is None
                or threads.thread_of(config) is not None
                or not await server_is_back(last.error, began)
            ):
                break
            began = time.monotonic()
            last = await attempt()
        trajectory, scope = last.trajectory, last.run.scope
        problem = await ignored(scope, trajectory, remote=scope.unrecorded) if last.error is None else None
        if problem is not None:
            trajectory.error = f"{PinIgnored.__name__}: {problem}"
        if reward is None and (own := last.run.reward) is not None:
            reward = lambda _: own  # noqa: E731
        if reward is not None:
            await score(trajectory, reward)
            warn_unheard(trajectory, source.kind)
        _describe(traced, trajectory)
        if store is not None:
            await asyncio.to_thread(store.add, trajectory, replaces=[record.id for record in scope.records])
        report(trajectory, scope.servers, last.run.server if last.run.registered or trajectory.error else None)
        if problem is not None:
            raise PinIgnored(problem, trajectories=[trajectory])
        return trajectory


def _describe(traced: tracing.Span, trajectory: Trajectory) -> None:
    """Says in the span of a rollout what came of it."""
    if traced is tracing.NOTHING:
        return
    trajectory.traceparent = traced.parent
    traced.rename(gen_ai.agent(trajectory.graph_id)[0])
    traced.set(
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
        traced.event("gen_ai.evaluation.result", score)
    if trajectory.error is not None:
        traced.fail(trajectory.error)


@dataclass(frozen=True, slots=True)
class _Attempt:
    """One run of a graph or function.

    Args:
        trajectory: What it did.
        run: The run, with its scope.
        error: What it raised; None: it returned.
    """

    trajectory: Trajectory
    run: Run
    error: Exception | None


async def _run(
    source: GraphSource,
    scenario: Scenario,
    scope: Scope,
    *,
    config: RunnableConfig | None,
    timeout: float | None,
    store: TrajectoryStore | None,
    resume: Resume | None,
    evaluation: bool,
    metadata: Mapping[str, Any] | None,
) -> _Attempt:
    """Runs a graph or function once."""
    recorder, version = scope.recorder, scope.version
    trajectory = Trajectory(
        scenario=scenario,
        rollout_id=scope.rollout_id,
        temperature=scope.temperature,
        requested_version=dict(version) if isinstance(version, Mapping) else version,
        evaluation=evaluation,
        hints=dict(scope.hints),
        metadata=dict(metadata or {}),
        resumes=resumed_state(scenario.input, threads.configurable(config)),
    )
    started, opened = time.monotonic(), False
    raised: Exception | None = None
    handler = ARTCallbackHandler(scope)
    attach()
    tie_clients()
    run = Run(scope, scenario, source.server or next(iter(known_servers()), None), source.policy)
    may_answer = source.may_answer
    if scope.hints and run.server is None:
        raise ConfigError(
            "hints= needs the trainer server that the graph asks: make a ChatART or a TrainerClient first"
        )
    with recording(scope, handler):
        try:
            if may_answer or scope.hints:
                certain = source.answers or bool(scope.hints)
                await register(run, evaluation=evaluation, metadata=metadata or {}, certain=certain)
            async with AsyncExitStack() as stack:
                stack.enter_context(running(run))
                stack.enter_context(found_by_clients(run.server if may_answer else None))
                scope.exits = stack
                runnable = await source.open(scenario, run, stack, timeout)
                opened = True
                if isinstance(runnable, Output):
                    trajectory.output, trajectory.graph_id = runnable.value, source.name
                else:
                    async with asyncio.timeout(timeout):
                        whole = threads.own_thread(
                            _with_handover(config, scope, scenario.id, evaluation),
                            runnable,
                            scope.rollout_id,
                            resumed=resume is not None,
                        )
                        trajectory.graph_id, trajectory.thread_id = runnable.get_name(), threads.thread_of(whole)
                        if trajectory.resumes:
                            trajectory.scenario = await threads.thread_scenario(scenario, runnable, whole, store)
                        trajectory.output = await runnable.ainvoke(graph_input(runnable, scenario.input), whole)
                        if resume:
                            await _resume(runnable, threads.newest(whole), resume, trajectory)
        except Exception as error:  # the user's graph, at the edge of a run: a bad rollout is data, not a crash
            if isinstance(error, NotStarted) and not opened:  # an inner rollout's is data of this run
                raise
            trajectory.error, raised = f"{type(error).__name__}: {error}", error
        finally:
            scope.exits = None  # a task that outlives the run must not wait for an end that has passed
        handler.close()
        run.ended = True
        trajectory.seconds = time.monotonic() - started
        await bring_home(scope, failed=raised is not None)
    if handler.root:
        trajectory.run_id = str(handler.root)
    elif scope.records:
        _say_which_run(trajectory, scope.records, raised)
    trajectory.completions = recorder.completions
    trajectory.tool_calls = recorder.tool_calls
    trajectory.nodes = recorder.nodes
    trajectory.metadata |= scope.metadata
    if scope.outside or (run.registered and source.kind == "function"):
        try:
            await add_ledger(run, trajectory)
        except ARTError as error:
            log.warning("a run has no record of what it asked the trainer server: %s", error)
            raised = raised or error
            trajectory.error = trajectory.error or f"{type(error).__name__}: {error}"
    return _Attempt(trajectory, run, raised)


def _say_which_run(trajectory: Trajectory, records: Sequence[Trajectory], raised: Exception | None) -> None:
    """The graph itself is remote: its process knows which run it was, and what it raised."""
    last = records[-1]
    trajectory.run_id, trajectory.assistant_id = last.run_id, last.assistant_id
    trajectory.graph_id, trajectory.thread_id = last.graph_id, trajectory.thread_id or last.thread_id
    # A run that was cancelled there may look here as if it had ended.
    if last.error is not None and (raised is None or isinstance(raised, RemoteException)):
        trajectory.error = f"{RemoteException.__name__}: {last.error}"


async def gather(
    graph: Graph | GraphSource,
    scenarios: Sequence[ScenarioLike],
    n: int = 8,
    reward: RewardFunction | None = None,
    *,
    max_concurrency: int = 16,
    temperature: float | None = None,
    config: RunnableConfig | None = None,
    timeout: float | None = None,
    store: TrajectoryStore | None = None,
    resume: Resume | None = None,
    version: int | Mapping[str, int] | None = None,
    evaluation: bool = False,
    metadata: Mapping[str, Any] | None = None,
    group_reward: GroupReward | None = None,
    progress: bool | str = True,
) -> list[TrajectoryGroup]:
    """Runs a graph `n` times on each scenario. Cancelling it cancels all rollouts.

    When many runs raise, or all runs of a scenario, a warning has their number and the first error.

    Args:
        graph: As that of `rollout`.
        scenarios: The tasks.
        n: Runs of each scenario.
        reward: Scores each run.
        max_concurrency: Runs at once.
        temperature: As that of `rollout`.
        config: As that of `rollout`.
        timeout: Seconds for a run of the graph.
        store: As that of `rollout`.
        resume: As that of `rollout`.
        version: As that of `rollout`.
        evaluation: As that of `rollout`.
        metadata: Your data, kept in each trajectory.
        group_reward: Scores the runs of a scenario together (`Ruler`, `group_sum`), when all of them have ended and
            `reward`, if any, has scored each.
        progress: Shows a bar on a terminal; a string labels it.

    Returns:
        A group for each scenario, in their order.

    Raises:
        ConfigError: As `rollout`, and for n or max_concurrency below 1.
        RolloutsFailed: Every run raised before the trainer server answered in it. The error has the trajectories.
        PinIgnored: As `rollout`, for the first such run, which ends all; or `version` is given, and the trainer server
            answered in no run.
    """
    source, checked = GraphSource.of(graph), [Scenario.of(scenario) for scenario in scenarios]
    source.check(checked)

    async def run(scenario: Scenario) -> Trajectory:
        return await rollout(
            source,
            scenario,
            reward,
            temperature=temperature,
            config=config,
            timeout=timeout,
            store=store,
            resume=resume,
            version=version,
            evaluation=evaluation,
            metadata=metadata,
        )

    groups = await run_groups(
        source,
        run,
        checked,
        n,
        max_concurrency=max_concurrency,
        group_reward=group_reward,
        store=store,
        progress=progress,
    )
    check_runs(groups)
    if source.kind != REMOTE:
        check_version_asked(runs_of(groups), version)
    return groups


async def run_groups(
    source: GraphSource,
    run: Callable[[Scenario], Awaitable[Trajectory]],
    scenarios: Sequence[Scenario],
    n: int,
    *,
    max_concurrency: int,
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
        max_concurrency: Runs at once.
        group_reward: As that of `gather`.
        store: Where the scores of groups are stored; None: nowhere.
        progress: As that of `gather`.

    Returns:
        A group for each scenario, in their order.

    Raises:
        ConfigError: n or max_concurrency is below 1.
    """
    if n < 1 or max_concurrency < 1:
        raise ConfigError(f"n={n} and max_concurrency={max_concurrency} must be at least 1")
    limit = asyncio.Semaphore(max_concurrency)
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
            async with asyncio.TaskGroup() as tasks:
                runs = [tasks.create_task(run_limited(scenario)) for _ in range(n)]
            group = TrajectoryGroup(scenario=scenario, trajectories=[task.result() for task in runs])
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

        try:
            async with asyncio.TaskGroup() as tasks:
                groups = [tasks.create_task(run_group(scenario)) for scenario in scenarios]
        except ExceptionGroup as errors:
            raise _first(errors) from None
    return [task.result() for task in groups]


def _first(error: Exception) -> Exception:
    """The error that ended a group of tasks. The other tasks were cancelled because of it."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error


async def _resume(graph: Runnable[Any, Any], config: RunnableConfig, resume: Resume, trajectory: Trajectory) -> None:
    """Goes on with a run until it ends: answers its interrupts, and leaves its breakpoints behind."""
    while (asked := await threads.questions(graph, trajectory.output, config)) is not None:
        given: Command[Any] | None = None
        if asked:
            value = resume(asked)
            given = Command(resume=await value if inspect.isawaitable(value) else value)
        trajectory.output = await graph.ainvoke(given, config)


def _with_handover(config: RunnableConfig | None, scope: Scope, scenario_id: str, evaluation: bool) -> RunnableConfig:
    """Adds to a config what a remote graph has to know of the rollout."""
    merged: dict[str, Any] = dict(config or {})
    merged["metadata"] = {**(merged.get("metadata") or {}), **handed_over(scope, scenario_id, evaluation=evaluation)}
    return cast(RunnableConfig, merged)
