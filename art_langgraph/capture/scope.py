"""The rollout being recorded, found from anywhere inside it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable
from uuid import UUID, uuid4

from langchain_core.callbacks import BaseCallbackHandler, BaseCallbackManager
from langchain_core.runnables.config import var_child_runnable_config
from langchain_core.tracers.context import register_configure_hook

from art_langgraph.attempts import parent_namespace
from art_langgraph.background.release import Server, release
from art_langgraph.capture.recorder import Recorder
from art_langgraph.trajectory import CompletionCall, Place, Trajectory
from trainer_server.common import tracing
from trainer_server.wire import VersionRef
from trainer_server.wire.headers import ROLLOUT, TEMPERATURE, VERSION, version_text


@dataclass(frozen=True, slots=True)
class RemoteCall:
    """A call of a `RemoteGraph` in a rollout.

    Args:
        graph: Name of the graph or id of its assistant, and the address of its LangGraph server.
        place: Where in the rollout's own graph the call was made. Empty where the remote graph is the rollout's own.
        id: What the call is handed over by.
    """

    graph: str
    place: Place = field(default_factory=Place)
    id: str = field(default_factory=lambda: f"rc-{uuid4().hex}")


@dataclass(slots=True, eq=False, weakref_slot=True)
class Scope:
    """What everything inside a rollout may want to know.

    Args:
        rollout_id: Sent to the gateway with each request, so that all completions of the rollout come from one version.
        recorder: What has happened so far.
        temperature: Overrides that of the graph's models; None: theirs.
        version: Of the graph's policies, for all or by name; None: what their names mean.
        hints: By policy, what the server puts into its prompts; empty: nothing.
        servers: Address and key of every trainer server that got a request, so that the rollout's hold on a policy
            version can be released.
        mark_count: How many requests to a trainer server carried the rollout's id.
        outside: Whether LangChain may not have reported all requests of the rollout: another client made some, or has
            the rollout's own base URL.
        refusals: By their bodies, requests of such clients that the trainer server refused.
        reported_ids: Ids of completions whose requests LangChain's callbacks report.
        places: By id of a completion that another client asked for, where in the graph it was.
        streamed_answers: By id of a completion that another client streamed in this process: whether it read all of the
            answer.
        exits: What is closed when the rollout's graph has ended; None where nobody waits for that end
            (`art_langgraph.capture.process`).
        routed_agents: Checkpoint namespaces of the agents whose model calls ARTMiddleware sends to a policy.
        remote: Calls of remote graphs, in their order.
        records: Records of the runs that answered these calls.
        unrecorded: Whether a call of a remote graph has no record, or not all of it.
        metadata: Records about the run from other components, such as the changes of its world. The trajectory's
            `metadata` gets them when the run ends.
        call: Id of the remote call that this rollout of another process made; None: the rollout is of this process, or
            says nothing of a call.
    """

    rollout_id: str = field(default_factory=lambda: f"ro-{uuid4().hex}")
    recorder: Recorder = field(default_factory=Recorder)
    temperature: float | None = None
    version: int | Mapping[str, VersionRef] | None = None
    hints: Mapping[str, str] = field(default_factory=dict)
    servers: set[Server] = field(default_factory=set)
    mark_count: int = 0
    outside: bool = False
    refusals: dict[bytes, CompletionCall] = field(default_factory=dict)
    reported_ids: set[str] = field(default_factory=set)
    places: dict[str, Place] = field(default_factory=dict)
    streamed_answers: dict[str, bool] = field(default_factory=dict)
    exits: AsyncExitStack | None = None
    routed_agents: set[str] = field(default_factory=set)
    remote: list[RemoteCall] = field(default_factory=list)
    records: list[Trajectory] = field(default_factory=list)
    unrecorded: bool = False
    metadata: dict[str, Any] = field(default_factory=dict)
    call: str | None = None

    def beyond_routes(self, namespace: str) -> bool:
        """Whether a node belongs to a graph that runs inside a routed agent and is not routed itself."""
        graph = parent_namespace(namespace)
        above = graph
        while above and graph not in self.routed_agents:
            above = parent_namespace(above)
            if above in self.routed_agents:
                return True
        return False

    @property
    def pinned(self) -> bool:
        """Whether something holds for the rollout's requests that they do not say themselves."""
        return self.version is not None or self.temperature is not None or bool(self.hints)

    @property
    def headers(self) -> dict[str, str]:
        """The headers of a request to a trainer server that is made in the rollout."""
        headers = {ROLLOUT: self.rollout_id}
        if self.temperature is not None:
            headers[TEMPERATURE] = str(self.temperature)
        if self.version is not None:
            headers[VERSION] = version_text(self.version)
        return headers | tracing.headers()


@runtime_checkable
class ScopeSource(Protocol):
    """A callback handler that knows which rollout a run belongs to."""

    def scope_of(self, run_id: UUID | None) -> Scope | None: ...


@runtime_checkable
class PlaceSource(Protocol):
    """A callback handler that knows where in a graph a run is."""

    def place(self, parent: UUID | None, metadata: dict[str, Any]) -> Place: ...


_current: ContextVar[Scope | None] = ContextVar("art_rollout", default=None)


def current() -> Scope | None:
    """The rollout that is running here: an explicit one, or that of the handler of the enclosing run; or None."""
    return _current.get() or _enclosing()


def explicit() -> Scope | None:
    """The rollout that `recording` opened around here, or None."""
    return _current.get()


_handler: ContextVar[BaseCallbackHandler | None] = ContextVar("art_rollout_handler", default=None)
register_configure_hook(_handler, inheritable=True)


def current_handler() -> BaseCallbackHandler | None:
    """The handler that records the rollout which `recording` opened around here."""
    return _handler.get()


@contextmanager
def recording(scope: Scope, handler: BaseCallbackHandler) -> Iterator[Scope]:
    """Makes `scope` the current rollout inside the `with` block, in this task and those it starts.

    The handler records every LangChain run in there, whatever callbacks the run has. A run that goes on around the
    block, such as that of the node which calls it, encloses none of them: its handlers do not get their events. At the
    end of the block, the policy versions that the rollout holds are given back.
    """
    token, handler_token, config = _current.set(scope), _handler.set(handler), var_child_runnable_config.set(None)
    try:
        yield scope
    finally:
        var_child_runnable_config.reset(config)
        _handler.reset(handler_token)
        _current.reset(token)
        release(scope.rollout_id, scope.servers)


@contextmanager
def suspend_recording() -> Iterator[None]:
    """What runs inside the `with` block belongs to no rollout, though one may be running here: nothing records it."""
    with recording(Scope(), BaseCallbackHandler()):
        yield


def enclosing_run() -> tuple[UUID | None, dict[str, Any]]:
    """Id and metadata of the node or tool that runs here, for calls that do not say (`model.agenerate`)."""
    config = var_child_runnable_config.get() or {}
    if (manager := _enclosing_manager()) is None:
        return None, {}
    return manager.parent_run_id, {**manager.metadata, **(config.get("metadata") or {})}


def enclosing_place() -> Place:
    """Where in a recorded graph this code runs; an empty place outside of any."""
    run_id, metadata = enclosing_run()
    manager = _enclosing_manager()
    sources = [handler for handler in manager.handlers if isinstance(handler, PlaceSource)] if manager else []
    return sources[0].place(run_id, metadata) if sources else Place()


def _enclosing() -> Scope | None:
    """The rollout of the callbacks of the node or tool that runs here; a stream gets no run manager that has one."""
    if manager := _enclosing_manager():
        for handler in manager.handlers:
            if isinstance(handler, ScopeSource) and (scope := handler.scope_of(manager.parent_run_id)):
                return scope
    return None


def _enclosing_manager() -> BaseCallbackManager | None:
    manager = (var_child_runnable_config.get() or {}).get("callbacks")
    return manager if isinstance(manager, BaseCallbackManager) else None
