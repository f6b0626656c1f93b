"""`session`: a rollout around code that nobody wants to wrap in a function."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import Any

from art_langgraph.background.reports import report
from art_langgraph.capture.graph_run import error_text
from art_langgraph.capture.handler import ARTCallbackHandler
from art_langgraph.capture.scope import Scope, recording
from art_langgraph.client.outages import retry_seconds
from art_langgraph.client.servers import known_servers
from art_langgraph.programs.clients import tie_clients
from art_langgraph.programs.environment import found_by_clients
from art_langgraph.programs.ledger import LedgerClient, add_ledger, add_ledger_now, register, register_now
from art_langgraph.programs.run import Run, running
from art_langgraph.store import TrajectoryStore
from art_langgraph.trajectory import Scenario, Trajectory
from trainer_server.common.jsonl import to_json
from trainer_server.wire import ARTError, Reward

log = logging.getLogger("art_langgraph")


class session:
    """Records what code does in a `with` block as a rollout: `async with session("2 + 2?") as run: …`, or `with`.

    Clients inside of the block are tied to the rollout as inside of a function that `rollout` runs (`Run`). Set
    `run.reward` in the block. After the block, `run.trajectory` has what was done. The reward is also given to the
    rollout at the trainer server, so that `art-langgraph train --from-ledger` can train on it. What the block raises is
    the trajectory's `error`, and is raised.

    Args:
        scenario: The task, in any form that `rollout` takes. Sessions of the same scenario are compared.
        store: Where the trajectory is kept as well.
        temperature: Sampling temperature of the policies; None: that of each request.
        version: Version of the policies, for all of them or by name; None: the one that each name means.
        evaluation: The session evaluates a version, and is never trained on.
        metadata: Your data, kept in the trajectory.

    Raises:
        ServerError: The trainer server refuses the rollout.
        ServerUnreachable: At the end of the block, and the block raised nothing: what it did cannot be read.
    """

    def __init__(
        self,
        scenario: Scenario | Any,
        *,
        store: TrajectoryStore | None = None,
        temperature: float | None = None,
        version: int | Mapping[str, int] | None = None,
        evaluation: bool = False,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        self._store, self._evaluation, self._metadata = store, evaluation, dict(metadata or {})
        self._scope = Scope(temperature=temperature, version=version)
        self._handler = ARTCallbackHandler(self._scope)
        self._run = Run(self._scope, Scenario.of(scenario), next(iter(known_servers()), None))
        self._block = ExitStack()
        self._began = 0.0

    async def __aenter__(self) -> Run:
        await register(self._run, evaluation=self._evaluation, metadata=self._metadata)
        return self._enter()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        trajectory = self._end_block(error)
        try:
            if self._run.registered or self._scope.outside:
                await add_ledger(self._run, trajectory)
            if (request := self._reward(trajectory)) is not None and self._run.server is not None:
                await LedgerClient(self._run.server, retry_seconds()).send("POST", *request)
        except ARTError as problem:
            self._incomplete(trajectory, problem, error)
        finally:
            if self._store is not None:
                await asyncio.to_thread(self._store.add, trajectory)
            report(trajectory, self._scope.servers, self._run.server if self._run.registered else None)

    def __enter__(self) -> Run:
        register_now(self._run, evaluation=self._evaluation, metadata=self._metadata)
        return self._enter()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        trajectory = self._end_block(error)
        try:
            if self._run.registered or self._scope.outside:
                add_ledger_now(self._run, trajectory)
            if (request := self._reward(trajectory)) is not None and self._run.server is not None:
                LedgerClient(self._run.server, retry_seconds()).send_now("POST", *request)
        except ARTError as problem:
            self._incomplete(trajectory, problem, error)
        finally:
            if self._store is not None:
                self._store.add(trajectory)
            report(trajectory, self._scope.servers, self._run.server if self._run.registered else None)

    def _enter(self) -> Run:
        tie_clients()
        self._began = time.monotonic()
        self._block.enter_context(recording(self._scope, self._handler))
        self._block.enter_context(running(self._run))
        self._block.enter_context(found_by_clients(self._run.server))
        return self._run

    def _end_block(self, error: BaseException | None) -> Trajectory:
        """Ends the block. Returns what this process recorded of it."""
        self._block.close()
        self._handler.close()
        self._run.ended = True
        scope, recorder = self._scope, self._scope.recorder
        trajectory = Trajectory(
            id=scope.rollout_id,
            scenario=self._run.scenario,
            completions=recorder.completions,
            tool_calls=recorder.tool_calls,
            nodes=recorder.nodes,
            error=None if error is None else error_text(error),
            evaluation=self._evaluation,
            temperature=scope.temperature,
            requested_version=dict(scope.version) if isinstance(scope.version, Mapping) else scope.version,
            rollout_id=scope.rollout_id,
            run_id=str(self._handler.root) if self._handler.root else None,
            metadata=self._metadata,
            seconds=time.monotonic() - self._began,
        )
        reward = self._run.reward
        if isinstance(reward, dict):
            trajectory.reward, trajectory.metrics = math.fsum(reward.values()), dict(reward)
        else:
            trajectory.reward = reward
        self._run.trajectory = trajectory
        return trajectory

    def _reward(self, trajectory: Trajectory) -> tuple[str, str] | None:
        """The path and body of the request that gives the rollout its reward; None where it has none."""
        if trajectory.reward is None or not (self._run.registered or trajectory.completions):
            return None
        body = Reward(reward=trajectory.reward, metrics=trajectory.metrics, source="session")
        return f"{self._run.rollout_id}/reward", to_json(body)

    def _incomplete(self, trajectory: Trajectory, problem: ARTError, error: BaseException | None) -> None:
        """Notes that the ledger could not be read. Raises the problem, unless the block has raised an error itself."""
        trajectory.error = trajectory.error or f"{type(problem).__name__}: {problem}"
        if error is None:
            raise problem
        log.warning("a session has no record of what it asked the trainer server: %s", problem)
