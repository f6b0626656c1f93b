"""Runs rollouts in this process."""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, cast

from langchain_core.runnables import Runnable, RunnableConfig
from langgraph.pregel.remote import RemoteException

from art_langgraph.capture.graph_run import resumed_state
from art_langgraph.capture.handler import ARTCallbackHandler
from art_langgraph.capture.handover import handover_metadata
from art_langgraph.capture.remote.calls import attach
from art_langgraph.capture.remote.fetch import fetch_remote_records
from art_langgraph.capture.scope import Scope, recording
from art_langgraph.client.servers import known_servers
from art_langgraph.loop import threads
from art_langgraph.loop.executors.base import Resume, RolloutResult, RolloutTask
from art_langgraph.loop.graphs import GraphSource, NotStarted, Output, graph_input, time_limit
from art_langgraph.loop.lost_server import REPEATS, run_error, server_is_back
from art_langgraph.loop.pins import PinIgnored, find_ignored_pin
from art_langgraph.programs.clients import tie_clients
from art_langgraph.programs.environment import found_by_clients
from art_langgraph.programs.ledger import add_ledger, register
from art_langgraph.programs.run import Run, running
from art_langgraph.trajectory import Trajectory
from trainer_server.wire import ARTError, ConfigError

log = logging.getLogger("art_langgraph")


class LocalExecutor:
    """Runs rollouts in this process, all of them in its event loop."""

    async def run(self, source: GraphSource, task: RolloutTask, *, rollout_id: str | None = None) -> RolloutResult:
        """Runs a graph, or a function that is the agent, in this process. Cancelling it ends the run.

        Args:
            source: The graph or function.
            task: The scenario, and how it is run.
            rollout_id: Id of the run; None: a new one. A run that is repeated because it lost the trainer server has
                another one.
        """
        began = time.monotonic()
        last = await _run(source, task, _scope(task, rollout_id))
        for _ in range(REPEATS):
            if (
                last.error is None
                or threads.thread_of(task.config) is not None
                or not await server_is_back(last.error, began)
            ):
                break
            began = time.monotonic()
            last = await _run(source, task, _scope(task))
        trajectory, scope = last.trajectory, last.run.scope
        problem = await find_ignored_pin(scope, trajectory, remote=scope.unrecorded) if last.error is None else None
        if problem is not None:
            trajectory.error = f"{PinIgnored.__name__}: {problem}"
        return RolloutResult(
            trajectory,
            source.kind,
            frozenset(scope.servers),
            last.run.server if last.run.registered or trajectory.error else None,
            last.run.reward,
            tuple(record.id for record in scope.records),
            problem,
        )


def _scope(task: RolloutTask, rollout_id: str | None = None) -> Scope:
    scope = Scope(temperature=task.temperature, version=task.version, hints=task.hints)
    scope.rollout_id = rollout_id or scope.rollout_id
    return scope


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


async def _run(source: GraphSource, task: RolloutTask, scope: Scope) -> _Attempt:
    """Runs a graph or function once."""
    recorder, version = scope.recorder, scope.version
    trajectory = Trajectory(
        scenario=task.scenario,
        rollout_id=scope.rollout_id,
        temperature=scope.temperature,
        requested_version=dict(version) if isinstance(version, Mapping) else version,
        evaluation=task.evaluation,
        hints=dict(scope.hints),
        metadata=dict(task.metadata),
        resumes=resumed_state(task.scenario.input, threads.configurable(task.config)),
    )
    start, is_open = time.monotonic(), False
    failure: Exception | None = None
    handler = ARTCallbackHandler(scope)
    attach()
    tie_clients()
    run = Run(scope, task.scenario, source.server or next(iter(known_servers()), None), source.policy)
    may_answer = source.may_answer
    if scope.hints and run.server is None:
        raise ConfigError(
            "hints= needs the trainer server that the graph asks: make a ChatART or a TrainerClient first"
        )
    with recording(scope, handler):
        try:
            if may_answer or scope.hints:
                certain = source.answers or bool(scope.hints)
                await register(run, evaluation=task.evaluation, metadata=task.metadata, certain=certain)
            async with AsyncExitStack() as stack:
                stack.enter_context(running(run))
                stack.enter_context(found_by_clients(run.server if may_answer else None))
                scope.exits = stack
                runnable = await source.open(task.scenario, run, stack, task.timeout)
                is_open = True
                if isinstance(runnable, Output):
                    trajectory.output, trajectory.graph_id = runnable.value, source.name
                else:
                    async with time_limit(task.timeout):
                        whole = threads.own_thread(
                            _with_handover(task.config, scope, task.scenario.id, task.evaluation),
                            runnable,
                            scope.rollout_id,
                            resumed=task.resume is not None,
                        )
                        trajectory.graph_id, trajectory.thread_id = runnable.get_name(), threads.thread_of(whole)
                        if trajectory.resumes:
                            trajectory.scenario = await threads.thread_scenario(
                                task.scenario, runnable, whole, task.store
                            )
                        trajectory.output = await runnable.ainvoke(graph_input(runnable, task.scenario.input), whole)
                        if task.resume:
                            await _resume(runnable, threads.newest(whole), task.resume, trajectory)
        except Exception as error:  # the user's graph, at the edge of a run: a bad rollout is data, not a crash
            if isinstance(error, NotStarted) and not is_open:  # an inner rollout's is data of this run
                raise
            trajectory.error, failure = run_error(error), error
        finally:
            scope.exits = None  # a task that outlives the run must not wait for an end that has passed
        handler.close()
        run.ended = True
        trajectory.seconds = time.monotonic() - start
        await fetch_remote_records(scope, failed=failure is not None)
    if handler.root:
        trajectory.run_id = str(handler.root)
    elif scope.records:
        _set_remote_ids(trajectory, scope.records, failure)
    trajectory.completions = recorder.completions
    trajectory.tool_calls = recorder.tool_calls
    trajectory.nodes = recorder.nodes
    trajectory.metadata |= scope.metadata
    if scope.outside or (run.registered and source.kind == "function"):
        try:
            await add_ledger(run, trajectory)
        except ARTError as error:
            log.warning("a run has no record of what it asked the trainer server: %s", error)
            failure = failure or error
            trajectory.error = trajectory.error or f"{type(error).__name__}: {error}"
    return _Attempt(trajectory, run, failure)


def _set_remote_ids(trajectory: Trajectory, records: Sequence[Trajectory], error: Exception | None) -> None:
    """The graph itself is remote: its process knows which run it was, and what it raised."""
    last = records[-1]
    trajectory.run_id, trajectory.assistant_id = last.run_id, last.assistant_id
    trajectory.graph_id, trajectory.thread_id = last.graph_id, trajectory.thread_id or last.thread_id
    # A run that was cancelled there may look here as if it had ended.
    if last.error is not None and (error is None or isinstance(error, RemoteException)):
        trajectory.error = f"{RemoteException.__name__}: {last.error}"


async def _resume(graph: Runnable[Any, Any], config: RunnableConfig, resume: Resume, trajectory: Trajectory) -> None:
    """Goes on with a run until it ends: answers its interrupts, and leaves its breakpoints behind."""
    before: list[Any] = []
    while (questions := await threads.questions(graph, trajectory.output, config)) is not None:
        number = await threads.waiting(graph, config)
        by_ids = len(questions) > 1 or number > 1
        if by_ids:
            await threads.check_progress(graph, config, before, number)
        answers = []
        for question in questions:
            value = resume(question)
            answers.append(await value if inspect.isawaitable(value) else value)
        trajectory.output = await graph.ainvoke(threads.command(questions, answers, by_ids=by_ids), config)


def _with_handover(config: RunnableConfig | None, scope: Scope, scenario_id: str, evaluation: bool) -> RunnableConfig:
    """Adds to a config what a remote graph has to know of the rollout."""
    merged: dict[str, Any] = dict(config or {})
    merged["metadata"] = {
        **(merged.get("metadata") or {}),
        **handover_metadata(scope, scenario_id, evaluation=evaluation),
    }
    return cast(RunnableConfig, merged)
