"""One graph on one scenario → one trajectory; many → groups."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, cast
from urllib.parse import quote
from uuid import uuid4
from weakref import WeakKeyDictionary

import httpx
from langchain_core.runnables import Runnable, RunnableConfig
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from art_langgraph.callback import ARTCallbackHandler, Recorder
from art_langgraph.rewards import RewardFunction, score
from art_langgraph.scope import Scope, recording
from art_langgraph.store import TrajectoryStore
from art_langgraph.trajectory import Scenario, Trajectory, TrajectoryGroup
from trainer_server.wire import ConfigError

ScenarioLike = Scenario | dict[str, Any] | str
Graph = Runnable[Any, Any] | Callable[..., Any]
"""A compiled graph, or a function that makes one for a scenario: (scenario) → graph, async or not, or an async context
manager that yields it."""

_RELEASE_TIMEOUT = 2.0
_clients: WeakKeyDictionary[asyncio.AbstractEventLoop, httpx.AsyncClient] = WeakKeyDictionary()


async def rollout(
    graph: Graph,
    scenario: ScenarioLike,
    reward: RewardFunction | None = None,
    *,
    temperature: float | None = None,
    config: RunnableConfig | None = None,
    timeout: float | None = None,
    store: TrajectoryStore | None = None,
) -> Trajectory:
    """Runs a graph on a scenario and records what it did.

    temperature: asks the gateway to override what the graph hard-codes. timeout: seconds for the graph; running over
    is an error of the trajectory. A graph that raises gives a trajectory with its `error` and all it did until then.
    Every ChatART inside gets one version of its policy for the whole rollout.
    """
    scenario = Scenario.of(scenario)
    trajectory = Trajectory(scenario=scenario)
    recorder = Recorder()
    scope = Scope(f"ro-{uuid4().hex}", recorder, temperature)
    trajectory.metadata["rollout_id"] = scope.rollout_id
    started = time.monotonic()
    try:
        with recording(scope):
            async with AsyncExitStack() as stack, asyncio.timeout(timeout):
                runnable = await _resolve(graph, scenario, stack)
                trajectory.output = await runnable.ainvoke(scenario.input, _with_handler(config, recorder))
    except Exception as error:  # the user's graph, at the edge of a run: a bad rollout is data, not a crash
        trajectory.error = f"{type(error).__name__}: {error}"
    finally:
        await _release(scope)
    trajectory.seconds = time.monotonic() - started
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
    progress: bool | str = True,
) -> list[TrajectoryGroup]:
    """Runs a graph `n` times on each scenario, at most `max_concurrency` at once; one group per scenario, in order.

    progress: show a bar on a terminal, a string labels it. Cancelling it cancels every rollout under way.
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

        async def one(group: TrajectoryGroup) -> Trajectory:
            async with limit:
                found = await rollout(
                    graph, group.scenario, reward, temperature=temperature, config=config, timeout=timeout, store=store
                )
            bar.advance(task)
            return found

        async with asyncio.TaskGroup() as tasks:
            running = [[tasks.create_task(one(group)) for _ in range(n)] for group in groups]
    for group, finished in zip(groups, running, strict=True):
        group.trajectories = [each.result() for each in finished]
    return groups


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


def _with_handler(config: RunnableConfig | None, recorder: Recorder) -> RunnableConfig:
    merged: dict[str, Any] = dict(config or {})
    handler = ARTCallbackHandler(recorder)
    callbacks = merged.get("callbacks")
    if callbacks is None or isinstance(callbacks, Sequence):
        merged["callbacks"] = [*(callbacks or []), handler]
    else:  # a callback manager
        merged["callbacks"] = callbacks.copy()
        merged["callbacks"].add_handler(handler, inherit=True)
    return cast(RunnableConfig, merged)


async def _release(scope: Scope) -> None:
    """Gives the rollout's policy versions back. Best effort: an unreleased lease expires by itself."""
    if not scope.servers:
        return
    client = _clients.setdefault(asyncio.get_running_loop(), httpx.AsyncClient(timeout=_RELEASE_TIMEOUT))
    for url, key in scope.servers:
        headers: Mapping[str, str] = {"Authorization": f"Bearer {key}"}
        try:
            await client.delete(f"{url}/api/rollouts/{quote(scope.rollout_id)}", headers=headers)
        except httpx.HTTPError:
            continue
