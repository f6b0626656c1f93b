"""Runs rollouts as tasks of a Ray cluster: for graphs that need more processors than one machine has.

The worker runs the graph, and sends the trajectory back. What belongs to the caller stays with the caller: the reward
function, the trajectory store, the reports to the trainer server.
"""

from __future__ import annotations

import asyncio
import logging
import os
from functools import partial
from types import ModuleType
from typing import Any
from uuid import uuid4
from weakref import WeakKeyDictionary

from art_langgraph.background.release import flush, release
from art_langgraph.loop.executors.base import RolloutResult, RolloutTask
from art_langgraph.loop.executors.transfer import (
    ARGUMENT,
    Packer,
    TaskMessage,
    await_answer,
    lost_result,
    pack_result,
    pack_value,
    servers_of,
)
from art_langgraph.loop.graphs import Graph, GraphSource, NotStarted
from art_langgraph.notices import warn_once
from trainer_server.common import Connection, tracing
from trainer_server.common.home import is_local
from trainer_server.wire import ConfigError
from trainer_server.wire.text import beginning

log = logging.getLogger("art_langgraph")

_REMEDY = (
    "Give a factory instead, a function of a module that makes the graph and its models on the worker: "
    "`from my_agents import make_graph`, then gather(make_graph, …), which sends the name my_agents:make_graph alone"
)


def _packer(cloudpickle: ModuleType) -> Packer:
    """Packs what can be imported by its name, and all else by its content."""
    return partial(pack_value, pickler=cloudpickle.Pickler, receiver="a Ray worker", remedy=_REMEDY)


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
            servers = _servers(source)
            sent = TaskMessage.of(source, task, f"ro-{uuid4().hex}", servers)
            proven = source.proven
            reference = (
                ray.remote(_work)
                .options(**self._options)
                .remote(graph, proven, _packer(ray.cloudpickle)(sent, ARGUMENT))
            )
            try:
                answer = ray.cloudpickle.loads(
                    await await_answer(
                        reference.future(),
                        cancel=partial(ray.cancel, reference),
                        kill=partial(ray.cancel, reference, force=True),
                    )
                )
            except _lost_errors(ray) as error:
                self.lost += 1
                lost_ids.append(sent.rollout_id)
                release(sent.rollout_id, [(server.url, server.api_key) for server in servers])
                cause = beginning(f"{type(error).__name__}: {str(error).strip().splitlines()[0]}", 200)
                if len(lost_ids) > self._retries:
                    reason = f"the Ray workers of {len(lost_ids)} attempts were lost: {cause}"
                    return lost_result(source, sent, reason, {LOST_ROLLOUTS: lost_ids})
                log.warning("the rollout %s was lost with its Ray worker, and is run again (%s)", lost_ids[-1], cause)
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
            self._sent[source] = ray.put(_packer(ray.cloudpickle)(source.graph, name))
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
    """The trainer servers that a worker shall know. A warning names those that another machine cannot reach."""
    servers = servers_of(source)
    for server in servers:
        if is_local(server.url):
            warn_once(
                f"rollouts run on Ray, and the trainer server's address is {server.url}, which only this machine has",
                "Let the server listen on an address of the network (`serve --host`), and set ART_BASE_URL to it",
            )
    return servers


def _work(graph: bytes, proven: bool, packed_task: bytes) -> bytes:
    """A rollout in a Ray worker.

    Args:
        graph: The packed function.
        proven: Whether the function has made a graph before, in another process.
        packed_task: The packed task.

    Returns:
        The packed result, and whether the function is proven; or the packed ConfigError that was raised.
    """
    from ray import cloudpickle

    task: TaskMessage = cloudpickle.loads(packed_task)
    if task.servers:  # clients that the graph makes find the server that the caller's clients find
        os.environ.setdefault("ART_BASE_URL", task.servers[0].url)
        os.environ.setdefault("ART_API_KEY", task.servers[0].api_key)
    source = GraphSource(_load_graph(cloudpickle, graph), proven=proven)
    pack = _packer(cloudpickle)
    try:
        with tracing.span("ray task", parent=task.parent):
            result = asyncio.run(_awake(source, task))
    except ConfigError as error:
        return pack(error, "an error of the run")
    finally:
        tracing.flush()
        flush()
    return pack_result(pack, result, source.proven)


def _load_graph(cloudpickle: ModuleType, graph: bytes) -> Graph:
    value: Graph = cloudpickle.loads(graph)
    return value


async def _awake(source: GraphSource, task: TaskMessage) -> RolloutResult:
    """Runs a rollout in a loop that wakes now and then.

    Ray cancels a task by interrupting its main thread, without a signal of the system: a loop that waits for an answer
    of the network does not hear of it.
    """

    async def wake() -> None:
        while True:
            await asyncio.sleep(_HEARTBEAT)

    waking = asyncio.create_task(wake())
    try:
        return await task.run(source)
    finally:
        waking.cancel()
