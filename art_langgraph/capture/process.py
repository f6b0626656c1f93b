"""Capture without touching the graph: `install()` attaches to every LangChain run of the process.

    import art_langgraph.capture.process
    art_langgraph.capture.process.install()

or the environment variable ART_CAPTURE=1, which makes importing this module enough: name it as `"http": {"app":
"art_langgraph.dev:app"}` in langgraph.json, and `langgraph dev` records every run.
"""

from __future__ import annotations

import atexit
import logging
import os
import queue
import sqlite3
import threading
import time
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.tracers.context import register_configure_hook

from art_langgraph.capture.handler import ARTCallbackHandler
from art_langgraph.capture.release import release
from art_langgraph.capture.scope import Scope, enclosing_run, explicit
from art_langgraph.messages import plain
from art_langgraph.store import Batch, Session, TrajectoryStore
from art_langgraph.trajectory import CompletionCall, Scenario, Trajectory

log = logging.getLogger("art_langgraph")

_PAUSE = 0.02
"""Seconds between transactions, in which completions gather: with many rollouts, waking up costs more than writing."""

_IDENTITY = ("graph_id", "assistant_id", "thread_id", "run_id")
"""What a LangGraph server and LangGraph itself put into a run's metadata."""


@dataclass(slots=True, eq=False)
class _Root:
    """A run that nothing encloses, under way."""

    trajectory: Trajectory
    handler: ARTCallbackHandler
    members: set[UUID] = field(default_factory=set)


class _ProcessHandler(BaseCallbackHandler):
    """Gives every root run a handler of its own, and stores its trajectory when it ends."""

    run_inline = True

    def __init__(self) -> None:
        self.writer: _Writer | None = None
        self._roots: dict[UUID, _Root] = {}
        self._root_of: dict[UUID, UUID] = {}
        self._lock = threading.Lock()

    def scope_of(self, run_id: UUID | None) -> Scope | None:
        """The rollout that a run belongs to, unless an explicit one records it."""
        root = self._root(run_id)
        return root.handler.scope if root else None

    def on_chain_start(
        self, serialized: dict[str, Any], inputs: Any, *, run_id: UUID, parent_run_id: UUID | None = None, **kwargs: Any
    ) -> None:
        if root := self._adopt(run_id, parent_run_id, inputs, kwargs):
            root.handler.on_chain_start(serialized, inputs, run_id=run_id, parent_run_id=parent_run_id, **kwargs)

    def on_chain_end(self, outputs: Any, *, run_id: UUID, **kwargs: Any) -> None:
        if root := self._root(run_id):
            root.handler.on_chain_end(outputs, run_id=run_id, **kwargs)
            self._finish(run_id, outputs, None)

    def on_chain_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        if root := self._root(run_id):
            root.handler.on_chain_error(error, run_id=run_id, **kwargs)
            self._finish(run_id, None, f"{type(error).__name__}: {error}")

    def on_chat_model_start(
        self,
        serialized: dict[str, Any],
        messages: Any,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        **kwargs: Any,
    ) -> None:
        if parent_run_id is None:
            parent_run_id, kwargs["metadata"] = enclosing_run()
        # A call outside of any chain - in a bare thread, say - is a trajectory of its own: less detail, nothing lost.
        if root := self._adopt(run_id, parent_run_id, {"messages": messages[0]}, kwargs):
            root.handler.on_chat_model_start(serialized, messages, run_id=run_id, parent_run_id=parent_run_id, **kwargs)

    def on_llm_end(self, response: Any, *, run_id: UUID, **kwargs: Any) -> None:
        if root := self._root(run_id):
            root.handler.on_llm_end(response, run_id=run_id, **kwargs)
            self._finish(run_id, {"messages": [one.message for one in response.generations[0]]}, None)

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        if root := self._root(run_id):
            root.handler.on_llm_error(error, run_id=run_id, **kwargs)
            self._finish(run_id, None, f"{type(error).__name__}: {error}")

    def on_tool_start(
        self,
        serialized: dict[str, Any],
        input_str: str,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        **kwargs: Any,
    ) -> None:
        if parent_run_id and (root := self._adopt(run_id, parent_run_id, None, kwargs)):
            root.handler.on_tool_start(serialized, input_str, run_id=run_id, parent_run_id=parent_run_id, **kwargs)

    def on_tool_end(self, output: Any, *, run_id: UUID, **kwargs: Any) -> None:
        if root := self._root(run_id):
            root.handler.on_tool_end(output, run_id=run_id, **kwargs)

    def on_tool_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        if root := self._root(run_id):
            root.handler.on_tool_error(error, run_id=run_id, **kwargs)

    def _adopt(self, run_id: UUID, parent: UUID | None, inputs: Any, kwargs: dict[str, Any]) -> _Root | None:
        """Finds the root above a run that starts; a run without a parent is one."""
        if self.writer is None:
            return None
        with self._lock:
            above = self._root_of.get(parent) if parent else None
            if above is not None:
                root = self._roots[above]
                self._root_of[run_id] = above
                root.members.add(run_id)
                return root
        # An explicit rollout records itself. A parent that is unknown began before the capture.
        if parent is not None or explicit() is not None:
            return None
        root = self._begin(run_id, inputs, kwargs, self.writer)
        with self._lock:
            self._roots[run_id] = root
            self._root_of[run_id] = run_id
        return root

    def _begin(self, run_id: UUID, inputs: Any, kwargs: dict[str, Any], writer: _Writer) -> _Root:
        metadata: dict[str, Any] = kwargs.get("metadata") or {}
        identity: dict[str, Any] = {"graph_id": kwargs.get("name"), "run_id": run_id, **metadata}
        handler = ARTCallbackHandler()
        trajectory = Trajectory(
            scenario=Scenario(input=plain(inputs)),
            metadata={key: plain(value) for key, value in metadata.items() if key not in _IDENTITY},
            rollout_id=handler.scope.rollout_id,
            **dict[str, Any]({key: str(identity[key]) for key in _IDENTITY if identity.get(key) is not None}),
        )

        def keep(call: CompletionCall) -> None:
            if call is handler.recorder.completions[0]:
                writer.begun(trajectory)
            writer.completion(trajectory, call)

        handler.recorder.on_completion = keep
        return _Root(trajectory, handler, {run_id})

    def _root(self, run_id: UUID | None) -> _Root | None:
        with self._lock:
            above = self._root_of.get(run_id) if run_id else None
            return self._roots[above] if above else None

    def _finish(self, run_id: UUID, output: Any, error: str | None) -> None:
        with self._lock:
            root = self._roots.pop(run_id, None)
            if root is None:
                return
            for member in root.members:
                self._root_of.pop(member, None)
        one, recorder = root.trajectory, root.handler.recorder
        one.output, one.error = output, error
        one.completions, one.tool_calls, one.nodes = recorder.completions, recorder.tool_calls, recorder.nodes
        one.seconds = time.time() - one.started
        release(root.handler.scope)
        if one.completions and self.writer:  # a chain that asked no model is no run of an agent
            self.writer.finished(one)


_Write = Callable[[Batch], None]


class _Writer:
    """Writes off the event loop: a blocking call in a callback would stall it. What is queued shares a transaction."""

    def __init__(self, store: TrajectoryStore) -> None:
        self.store = store
        self._queue: queue.SimpleQueue[_Write | threading.Event | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="art-capture", daemon=True)
        self._thread.start()

    def completion(self, trajectory: Trajectory, call: CompletionCall) -> None:
        self._queue.put(lambda batch: batch.completion(trajectory.id, call))

    def begun(self, trajectory: Trajectory) -> None:
        header = trajectory.model_copy(update={"completions": [], "tool_calls": [], "nodes": []})
        self._queue.put(lambda batch: batch.begin(header))

    def finished(self, trajectory: Trajectory) -> None:
        self._queue.put(lambda batch: batch.add(trajectory))

    def flush(self) -> None:
        """Returns when all that was given is on disk."""
        written = threading.Event()
        self._queue.put(written)
        written.wait()

    def close(self) -> None:
        """Writes what is left and ends the thread."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        with self.store.session() as session:
            items: list[_Write | threading.Event | None] = []
            written = 0.0
            while None not in items:
                items = [self._queue.get()]
                time.sleep(max(0.0, written + _PAUSE - time.monotonic()))
                while not self._queue.empty():
                    items.append(self._queue.get())
                self._write(session, [item for item in items if item and not isinstance(item, threading.Event)])
                written = time.monotonic()
                for item in items:
                    if isinstance(item, threading.Event):
                        item.set()

    def _write(self, session: Session, writes: list[_Write]) -> None:
        """Writes all or, where one cannot be written, all others."""
        while writes:
            try:
                with session.batch() as batch:
                    for write in writes:
                        write(batch)
                return
            except sqlite3.OperationalError as error:  # a full disk, a lock: what was captured waits for better times
                log.error("captured runs wait: %s cannot be written: %s", self.store.path, error)
                time.sleep(1.0)
            except Exception as error:  # of the user's data: the thread must live on
                if len(writes) == 1:
                    log.exception("a captured run is lost: it cannot be written: %s", error)
                    return
                for write in writes:
                    self._write(session, [write])
                return


_handler = _ProcessHandler()
# The default is what reaches every task of a server; a plain `.set()` would be lost in them.
_hook: ContextVar[BaseCallbackHandler | None] = ContextVar("art_capture", default=_handler)
_registered = False


def install(store: TrajectoryStore | None = None) -> None:
    """Captures every graph that this process runs from now on, one trajectory per run, into `store`.

    Runs inside `rollout` record themselves and are left out. Calling it again changes the store.
    """
    global _registered
    uninstall()
    _handler.writer = _Writer(TrajectoryStore() if store is None else store)
    if not _registered:
        register_configure_hook(_hook, inheritable=True)
        atexit.register(flush)
        _registered = True


def uninstall() -> None:
    """Stops capturing, after writing what has finished."""
    writer, _handler.writer = _handler.writer, None
    if writer:
        writer.close()


def flush() -> None:
    """Waits until all finished runs are in the store."""
    if _handler.writer:
        _handler.writer.flush()


if os.environ.get("ART_CAPTURE") == "1":
    install()
