"""One graph on one scenario → one trajectory; many → groups."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, cast

from langchain_core.runnables import Runnable, RunnableConfig
from langgraph.types import Command
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from art_langgraph.capture.handler import ARTCallbackHandler
from art_langgraph.capture.release import release
from art_langgraph.capture.scope import Scope, recording
from art_langgraph.rewards import GroupReward, RewardFunction, score, score_group
from art_langgraph.store import TrajectoryStore
from art_langgraph.trajectory import Scenario, Trajectory, TrajectoryGroup
from trainer_server.wire import ConfigError

ScenarioLike = Scenario | dict[str, Any] | str | Command[Any]
"""A scenario, a user message, or a graph's input."""
Graph = Runnable[Any, Any] | Callable[..., Any]
"""A compiled graph, or a function that makes one for a scenario: (scenario) → graph, async or not, or an async context
manager that yields it."""

Resume = Callable[[list[Any]], Any]
"""Answers interrupts: their values → what the run is resumed with, or an awaitable of it."""


async def rollout(
    graph: Graph,
    scenario: ScenarioLike,
    reward: RewardFunction | None = None,
    *,
    temperature: float | None = None,
    config: RunnableConfig | None = None,
    timeout: float | None = None,
    store: TrajectoryStore | None = None,
    resume: Resume | None = None,
    version: int | Mapping[str, int] | None = None,
    evaluation: bool = False,
    metadata: Mapping[str, Any] | None = None,
) -> Trajectory:
    """Runs a graph on a scenario and records what it did.

    temperature: asks the gateway to override what the graph hard-codes. timeout: seconds for the graph; running over
    is an error of the trajectory. resume: answers the graph's interrupts, given as a list; without it an interrupt
    ends the run. version: of the policies that ChatART asks, for all of them or by name; None: the newest.
    A graph that raises gives a trajectory with its `error` and all it did until then. Every ChatART inside gets one
    version of its policy for the whole rollout. A graph with a checkpointer gets a thread of its own unless `config`
    names one. evaluation: the run measures, and is never trained on. metadata: your facts, kept with the trajectory.
    """
    scenario = Scenario.of(scenario)
    scope = Scope(temperature=temperature, version=version)
    recorder = scope.recorder
    trajectory = Trajectory(
        scenario=scenario,
        rollout_id=scope.rollout_id,
        temperature=temperature,
        requested_version=dict(version) if isinstance(version, Mapping) else version,
        evaluation=evaluation,
        metadata=dict(metadata or {}),
    )
    started = time.monotonic()
    handler = ARTCallbackHandler(scope)
    try:
        with recording(scope, handler):
            async with AsyncExitStack() as stack, asyncio.timeout(timeout):
                scope.exits = stack
                runnable = await _resolve(graph, scenario, stack)
                whole = _own_thread(config, runnable, scope)
                trajectory.graph_id, trajectory.thread_id = runnable.get_name(), _thread(whole)
                trajectory.output = await runnable.ainvoke(scenario.input, whole)
                while resume and (interrupts := _interrupts(trajectory.output)):
                    value = resume(interrupts)
                    value = await value if inspect.isawaitable(value) else value
                    trajectory.output = await runnable.ainvoke(Command(resume=value), whole)
    except Exception as error:  # the user's graph, at the edge of a run: a bad rollout is data, not a crash
        trajectory.error = f"{type(error).__name__}: {error}"
    finally:
        scope.exits = None  # what a stray task still opens must not wait for an end that has passed
        release(scope)
    trajectory.seconds = time.monotonic() - started
    if handler.root:
        trajectory.run_id = str(handler.root)
    trajectory.completions = recorder.completions
    trajectory.tool_calls = recorder.tool_calls
    trajectory.nodes = recorder.nodes
    if reward is not None:
        await score(trajectory, reward)
    if store is not None:
        await asyncio.to_thread(store.add, trajectory)
    return trajectory


async def gather(
    graph: Graph,
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
    """Runs a graph `n` times on each scenario, at most `max_concurrency` at once; one group per scenario, in order.

    group_reward: scores the runs of a scenario together, as soon as the last of them has ended and `reward`, if any,
    has scored each (`Ruler`, `blends`). progress: show a bar on a terminal, a string labels it. Cancelling it cancels
    every rollout under way.
    Raises ConfigError for n or max_concurrency below 1.
    """
    if n < 1 or max_concurrency < 1:
        raise ConfigError(f"n={n} and max_concurrency={max_concurrency} must be at least 1")
    limit = asyncio.Semaphore(max_concurrency)
    groups = [TrajectoryGroup(scenario=Scenario.of(scenario)) for scenario in scenarios]
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, transient=True, disable=not progress) as bar:
        label = progress if isinstance(progress, str) else "rollouts"
        task = bar.add_task(label, total=len(groups) * n)
        judging = bar.add_task(f"{label}: judged groups", total=len(groups)) if group_reward else None

        async def one(group: TrajectoryGroup) -> Trajectory:
            async with limit:
                found = await rollout(
                    graph, group.scenario, reward, temperature=temperature, config=config, timeout=timeout, store=store,
                    resume=resume, version=version, evaluation=evaluation, metadata=metadata,
                )  # fmt: skip
            bar.advance(task)
            return found

        async def whole(group: TrajectoryGroup) -> TrajectoryGroup:
            async with asyncio.TaskGroup() as tasks:
                runs = [tasks.create_task(one(group)) for _ in range(n)]
            group.trajectories = [run.result() for run in runs]
            if group_reward is None or judging is None:
                return group
            group = await score_group(group, group_reward)
            if store is not None:
                await asyncio.to_thread(store.score_group, group)
            bar.advance(judging)
            return group

        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(whole(group)) for group in groups]
    return [each.result() for each in running]


async def _resolve(graph: Graph, scenario: Scenario, stack: AsyncExitStack) -> Runnable[Any, Any]:
    if isinstance(graph, Runnable):
        return graph
    made = graph(scenario) if inspect.signature(graph).parameters else graph()
    if inspect.isawaitable(made):
        made = await made
    if hasattr(made, "__aenter__"):
        made = await stack.enter_async_context(made)
    if not isinstance(made, Runnable):
        raise ConfigError(f"the graph factory gave {type(made).__name__}, not a compiled graph")
    return made


def _thread(config: RunnableConfig) -> str | None:
    """The thread that a config names."""
    thread = (config.get("configurable") or {}).get("thread_id")
    return None if thread is None else str(thread)


def _interrupts(output: Any) -> list[Any]:
    """What a graph waits for, when it stopped at an interrupt."""
    found = output.get("__interrupt__") if isinstance(output, dict) else None
    return [one.value for one in found or ()]


def _own_thread(config: RunnableConfig | None, graph: Runnable[Any, Any], scope: Scope) -> RunnableConfig:
    """The config, with a thread of its own where the graph has a checkpointer and no thread is named."""
    merged: dict[str, Any] = dict(config or {})
    if getattr(graph, "checkpointer", None):
        merged["configurable"] = {"thread_id": scope.rollout_id, **(merged.get("configurable") or {})}
    return cast(RunnableConfig, merged)
