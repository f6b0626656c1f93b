"""Runs rollouts as tasks of a Ray cluster: for graphs that need more processors than one machine has.

The worker runs the graph, and sends the trajectory back. What belongs to the caller stays with the caller: the reward
function, the trajectory store, the reports to the trainer server.
"""

from __future__ import annotations

import asyncio
import io
import logging
import os
import pickle
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from types import ModuleType
from typing import Any
from uuid import uuid4
from weakref import WeakKeyDictionary

from langgraph.pregel import Pregel

from art_langgraph.background.release import flush, release
from art_langgraph.client.servers import known_servers, register_server
from art_langgraph.loop.executors.base import RolloutResult, RolloutTask
from art_langgraph.loop.executors.local import LocalExecutor
from art_langgraph.loop.graphs import Graph, GraphSource, NotStarted
from art_langgraph.notices import warn_once
from art_langgraph.trajectory import Trajectory
from trainer_server.common import Connection, tracing
from trainer_server.common.home import is_local
from trainer_server.wire import ConfigError
from trainer_server.wire.text import beginning

log = logging.getLogger("art_langgraph")


_REMEDY = (
    "Give a factory instead, a function of a module that makes the graph and its models on the worker: "
    "`from my_agents import make_graph`, then gather(make_graph, …), which sends the name my_agents:make_graph alone"
)


class _CompiledGraph(Exception):
    """A compiled graph would be copied. LangGraph compares markers by their identity, which a copy does not have: a
    node's result is refused there, or a channel that is empty counts as full."""


def pack_value(cloudpickle: ModuleType, value: Any, what: str) -> bytes:
    """A value as bytes: what can be imported by its name, all else by its content.

    Args:
        cloudpickle: Ray's own.
        value: What is sent.
        what: What it is, for messages.

    Raises:
        ConfigError: It cannot be pickled, or it holds a compiled graph.
    """

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc, name-defined]
        def reducer_override(self, obj: Any) -> Any:
            if isinstance(obj, Pregel):
                raise _CompiledGraph(f"the compiled graph {obj.get_name()!r} works in the process that made it only")
            return super().reducer_override(obj)

    file = io.BytesIO()
    try:
        Pickler(file).dump(value)
    except (_CompiledGraph, pickle.PicklingError, TypeError, AttributeError, RecursionError, ValueError) as error:
        raise ConfigError(f"{what} cannot be sent to a Ray worker: {_cause(error)}. {_REMEDY}") from error
    return file.getvalue()


def _cause(error: Exception) -> str:
    return str(error) if isinstance(error, _CompiledGraph) else f"{type(error).__name__}: {error}"


_GRACE = 5.0
"""Seconds that a cancelled task has to end, before its worker process is killed."""
_HEARTBEAT = 0.2
"""Seconds after which an idle event loop of a worker looks for a cancellation, for which there is no signal."""
LOST_ROLLOUTS = "lost_rollouts"
"""In the metadata of a run: ids of the rollouts that were lost with their workers, and that it takes the place of."""


class RayExecutor:
    """Runs each rollout as a Ray task.

    It uses the cluster that the program is connected to, else the one that `RAY_ADDRESS` names, else one that runs on
    this machine, else it starts one here. Every node needs the same Python, `art-langgraph[ray]`, the packages of the
    graph, and a way to the trainer server: its address and key, as this process knows them, go with each task.

    The graph has to be a function: a factory of graphs, or an agent. A function of a module is sent by its name, so
    that the worker imports it; one of the main program is sent whole. A compiled graph cannot be sent.

    A rollout whose worker is lost is run again, under another rollout id. A warning says so, and the run's metadata
    has the ids of those that were lost (`lost_rollouts`).

    Args:
        num_cpus: Processors that a rollout takes. One that mostly waits for the model takes a fraction.
        retries: How often a rollout is run again whose worker was lost. After that it is a failed run.
        options: Other options of Ray's tasks, such as `memory`, `resources` and `runtime_env`.

    Attributes:
        lost: How many rollouts were lost with their workers.
    """

    def __init__(self, num_cpus: float = 1.0, *, retries: int = 3, **options: Any) -> None:
        self.lost = 0
        self._retries = retries
        self._options = {"num_cpus": num_cpus, "scheduling_strategy": "SPREAD", **options, "max_retries": 0}
        self._sent: WeakKeyDictionary[GraphSource, Any] = WeakKeyDictionary()
        """By source: Ray's reference to the packed function."""

    async def run(self, source: GraphSource, task: RolloutTask) -> RolloutResult:
        """Runs a graph, or a function that is the agent, in a Ray worker. Cancelling it ends the run there.

        Args:
            source: The graph or function. Its `kind` is set when this returns.
            task: The scenario, and how it is run.

        Raises:
            ConfigError: Ray is not installed; the function, or an argument of `rollout`, cannot be sent; or the worker
                cannot import what it needs.
        """
        ray = _connect_ray()
        graph = self._graph(ray, source)
        lost_ids: list[str] = []
        while True:
            rollout_id = f"ro-{uuid4().hex}"
            servers = _servers(source)
            proven = source.proven
            task_bytes = pack_value(
                ray.cloudpickle,
                (replace(task, store=None), rollout_id, source.policy, source.server, servers, tracing.current()),
                "an argument of the rollout (scenario, config, resume or metadata)",
            )
            reference = ray.remote(_work).options(**self._options).remote(graph, proven, task_bytes)
            try:
                answer = ray.cloudpickle.loads(await _await_task(ray, reference))
            except _lost_errors(ray) as error:
                self.lost += 1
                lost_ids.append(rollout_id)
                release(rollout_id, [(server.url, server.api_key) for server in servers])
                cause = beginning(f"{type(error).__name__}: {str(error).strip().splitlines()[0]}", 200)
                if len(lost_ids) > self._retries:
                    return _given_up(source, task, lost_ids, servers, cause)
                log.warning("the rollout %s was lost with its Ray worker, and is run again (%s)", rollout_id, cause)
                continue
            except ray.exceptions.RayTaskError as error:
                raise ConfigError(
                    f"a Ray worker cannot run rollouts: {error.cause!r}. Each node needs the same version of "
                    "art-langgraph[ray], and the modules of the graph: install them, or name them in "
                    "RayExecutor(runtime_env=…)"
                ) from error
            if isinstance(answer, NotStarted) and source.proven and not proven:
                continue  # the factory worked in another run meanwhile: now its error is one of this run alone
            if isinstance(answer, ConfigError):
                raise answer
            result: RolloutResult = answer[0]
            source.proven = source.proven or answer[1]
            source.kind = result.kind
            if lost_ids:
                result.trajectory.metadata[LOST_ROLLOUTS] = lost_ids
            return result

    def _graph(self, ray: ModuleType, source: GraphSource) -> Any:
        """Ray's reference to the function, which is sent once."""
        if source not in self._sent:
            name = f"the function {source.name}" if source.name else "the graph"
            self._sent[source] = ray.put(pack_value(ray.cloudpickle, source.graph, name))
        return self._sent[source]


def _connect_ray() -> ModuleType:
    """Ray, connected to a cluster."""
    try:
        import ray
    except ImportError as error:
        raise ConfigError(
            f'executor="ray" needs Ray, which cannot be imported ({error}). Install it here and on each node of the '
            "cluster: pip install 'art-langgraph[ray]'"
        ) from error
    if not ray.is_initialized():
        ray.init()
    module: ModuleType = ray
    return module


def _lost_errors(ray: ModuleType) -> tuple[type[Exception], ...]:
    """What Ray raises where a worker, or its node, is gone. An error of the graph is none of them."""
    names = ("WorkerCrashedError", "NodeDiedError", "ObjectLostError", "OutOfMemoryError", "LocalRayletDiedError")
    return tuple(getattr(ray.exceptions, name) for name in names)


def _servers(source: GraphSource) -> list[Connection]:
    """The trainer servers that a worker shall know; first the one that clients find here."""
    candidates = known_servers()
    servers = list(dict.fromkeys([*candidates, source.server] if source.server else candidates))
    for server in servers:
        if is_local(server.url):
            warn_once(
                f"rollouts run on Ray, and the trainer server's address is {server.url}, which only this machine has",
                "Let the server listen on an address of the network (`serve --host`), and set ART_BASE_URL to it",
            )
    return servers


def _given_up(
    source: GraphSource, task: RolloutTask, lost_ids: Sequence[str], servers: Sequence[Connection], cause: str
) -> RolloutResult:
    """The failed run of a rollout that was lost too often."""
    trajectory = Trajectory(
        scenario=task.scenario,
        rollout_id=lost_ids[-1],
        temperature=task.temperature,
        requested_version=task.version if task.version is None or isinstance(task.version, int) else dict(task.version),
        evaluation=task.evaluation,
        hints=dict(task.hints),
        metadata={**task.metadata, LOST_ROLLOUTS: list(lost_ids)},
        error=f"WorkerLost: the Ray workers of {len(lost_ids)} attempts were lost: {cause}",
    )
    return RolloutResult(trajectory, source.kind, report_server=next(iter(servers), None))


async def _await_task(ray: ModuleType, reference: Any) -> bytes:
    """What a task returned. When the caller is cancelled, the task is ended first."""
    future: Future[bytes] = reference.future()
    waiting = asyncio.wrap_future(future)
    try:
        return await asyncio.shield(waiting)
    except asyncio.CancelledError:
        waiting.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        ray.cancel(reference)
        _, running = await asyncio.wait([waiting], timeout=_GRACE)
        if running:
            ray.cancel(reference, force=True)
        raise


def _work(graph: bytes, proven: bool, packed_task: bytes) -> bytes:
    """A rollout in a Ray worker.

    Args:
        graph: The packed function.
        proven: Whether the function has made a graph before, in another process.
        packed_task: The packed task, the id of the rollout, the policy that is trained, the server that functions ask,
            the servers to know, and the span that asked.

    Returns:
        The packed result, and whether the function is proven; or the packed ConfigError that was raised.
    """
    from ray import cloudpickle

    task, rollout_id, policy, server, servers, parent = cloudpickle.loads(packed_task)
    for connection in reversed(servers):
        register_server(connection)
    if servers:  # clients that the graph makes find the server that the caller's clients find
        os.environ.setdefault("ART_BASE_URL", servers[0].url)
        os.environ.setdefault("ART_API_KEY", servers[0].api_key)
    source = GraphSource(_load_graph(cloudpickle, graph), proven=proven)
    source.policy, source.server = policy, server
    try:
        with tracing.span("ray task", parent=parent):
            result = asyncio.run(_awake(source, task, rollout_id))
    except ConfigError as error:
        return pack_value(cloudpickle, error, "an error of the run")
    finally:
        tracing.flush()
        flush()
    return _packed_result(cloudpickle, result, source.proven)


def _load_graph(cloudpickle: ModuleType, graph: bytes) -> Graph:
    value: Graph = cloudpickle.loads(graph)
    return value


async def _awake(source: GraphSource, task: RolloutTask, rollout_id: str) -> RolloutResult:
    """Runs a rollout in a loop that wakes now and then.

    Ray cancels a task by interrupting its main thread, without a signal of the system: a loop that waits for an answer
    of the network does not hear of it.
    """

    async def wake() -> None:
        while True:
            await asyncio.sleep(_HEARTBEAT)

    waking = asyncio.create_task(wake())
    try:
        return await LocalExecutor().run(source, task, rollout_id=rollout_id)
    finally:
        waking.cancel()


def _packed_result(cloudpickle: ModuleType, result: RolloutResult, proven: bool) -> bytes:
    """The answer of a task. An output that cannot be sent is sent as the trajectory store would keep it."""
    try:
        return pack_value(cloudpickle, (result, proven), "the run")
    except ConfigError:
        trajectory = Trajectory.model_validate(result.trajectory.model_dump(mode="json"))
        return pack_value(cloudpickle, (replace(result, trajectory=trajectory), proven), "the run")
