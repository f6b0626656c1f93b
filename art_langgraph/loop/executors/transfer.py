"""What goes to a worker in another process, and what comes back: tasks, results, and runs that were lost."""

from __future__ import annotations

import asyncio
import io
import pickle
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, Protocol

from langgraph.pregel import Pregel

from art_langgraph.client.servers import known_servers, register_server
from art_langgraph.loop.executors.base import RolloutResult, RolloutTask
from art_langgraph.loop.executors.local import LocalExecutor
from art_langgraph.loop.graphs import GraphSource
from art_langgraph.trajectory import Trajectory
from trainer_server.common import Connection, tracing
from trainer_server.wire import ConfigError

ARGUMENT = "an argument of the rollout (scenario, config, resume or metadata)"
"""What a task is, for messages."""
_GRACE = 5.0
"""Seconds that a cancelled rollout has to end, before its worker is ended."""


@dataclass(frozen=True, slots=True)
class TaskMessage:
    """A rollout for a worker.

    Args:
        task: What shall run.
        rollout_id: Its id.
        policy: The policy that is trained, if one is.
        server: The trainer server that functions ask.
        servers: The servers to know; first the one that clients find in the caller's process.
        parent: The span that asked.
    """

    task: RolloutTask
    rollout_id: str
    policy: str | None
    server: Connection | None
    servers: Sequence[Connection]
    parent: str | None

    @classmethod
    def of(cls, source: GraphSource, task: RolloutTask, rollout_id: str, servers: Sequence[Connection]) -> TaskMessage:
        """A task as it is sent: the store stays with the caller."""
        task = replace(task, store=None)
        return cls(task, rollout_id, source.policy, source.server, servers, tracing.current())

    async def run(self, source: GraphSource) -> RolloutResult:
        """Runs it in this process, a worker. Raises ConfigError as `rollout`."""
        for connection in reversed(self.servers):
            register_server(connection)
        source.policy, source.server = self.policy, self.server
        return await LocalExecutor().run(source, self.task, rollout_id=self.rollout_id)


def servers_of(source: GraphSource) -> list[Connection]:
    """The trainer servers that a worker shall know; first the one that clients find here."""
    candidates = known_servers()
    return list(dict.fromkeys([*candidates, source.server] if source.server else candidates))


class Packer(Protocol):
    """Turns a value into bytes. Raises ConfigError, with what it is, where it cannot be sent."""

    def __call__(self, value: Any, what: str) -> bytes: ...


class CompiledGraph(Exception):
    """A compiled graph would be copied. LangGraph compares markers by their identity, which a copy does not have: a
    node's result is refused there, or a channel that is empty counts as full."""


def refuse_graph(graph: Pregel[Any, Any, Any, Any]) -> Any:
    """Raises CompiledGraph."""
    raise CompiledGraph(f"the compiled graph {graph.get_name()!r} works in the process that made it only")


def pack_value(
    value: Any,
    what: str,
    *,
    pickler: Any,
    receiver: str,
    remedy: str,
    reduce_graph: Callable[[Pregel[Any, Any, Any, Any]], Any] = refuse_graph,
) -> bytes:
    """A value as bytes.

    Args:
        value: What is sent.
        what: What it is, for messages.
        pickler: The class of the pickler.
        receiver: Where it goes, for messages.
        remedy: What helps, for messages.
        reduce_graph: How a compiled graph is pickled, as `__reduce__` says it.

    Raises:
        ConfigError: It cannot be pickled, or it holds a compiled graph that cannot be sent.
    """
    otherwise = getattr(pickler, "reducer_override", lambda self, obj: NotImplemented)

    class Pickler(pickler):  # type: ignore[misc]
        def reducer_override(self, obj: Any) -> Any:
            return reduce_graph(obj) if isinstance(obj, Pregel) else otherwise(self, obj)

    file = io.BytesIO()
    try:
        Pickler(file).dump(value)
    except (CompiledGraph, pickle.PicklingError, TypeError, AttributeError, RecursionError, ValueError) as error:
        cause = str(error) if isinstance(error, CompiledGraph) else f"{type(error).__name__}: {error}"
        raise ConfigError(f"{what} cannot be sent to {receiver}: {cause}. {remedy}") from error
    return file.getvalue()


def pack_result(pack: Packer, result: RolloutResult, proven: bool) -> bytes:
    """A result, and whether its function is proven. An output that cannot be sent is sent as the trajectory store would
    keep it."""
    try:
        return pack((result, proven), "the run")
    except ConfigError:
        trajectory = Trajectory.model_validate(result.trajectory.model_dump(mode="json"))
        return pack((replace(result, trajectory=trajectory), proven), "the run")


async def await_answer(future: Future[bytes], cancel: Callable[[], object], kill: Callable[[], object]) -> bytes:
    """The answer of a worker. When the caller is cancelled, the rollout is ended first.

    Args:
        future: Gets the answer.
        cancel: Cancels the rollout.
        kill: Ends a rollout that does not end when it is cancelled.
    """
    waiting = asyncio.wrap_future(future)
    try:
        return await asyncio.shield(waiting)
    except asyncio.CancelledError:
        waiting.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        cancel()
        _, running = await asyncio.wait([waiting], timeout=_GRACE)
        if running:
            kill()
        raise


def lost_result(
    source: GraphSource, task: TaskMessage, reason: str, metadata: Mapping[str, Any] | None = None
) -> RolloutResult:
    """The failed run of a rollout that was lost with its worker.

    Args:
        source: Of the graph or function.
        task: The rollout.
        reason: What became of the worker.
        metadata: More metadata of the run.
    """
    lost = task.task
    trajectory = Trajectory(
        scenario=lost.scenario,
        rollout_id=task.rollout_id,
        temperature=lost.temperature,
        requested_version=dict(lost.version) if isinstance(lost.version, Mapping) else lost.version,
        evaluation=lost.evaluation,
        hints=dict(lost.hints),
        metadata={**lost.metadata, **(metadata or {})},
        error=f"WorkerLost: {reason}",
    )
    return RolloutResult(trajectory, source.kind, report_server=next(iter(task.servers), None))
