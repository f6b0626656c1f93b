"""Capture without touching the graph: `install()` attaches to every LangChain run of the process."""

from __future__ import annotations

import queue
import threading
import time
from contextvars import ContextVar
from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.tracers.context import register_configure_hook

from art_langgraph.callback import ARTCallbackHandler
from art_langgraph.scope import current
from art_langgraph.store import TrajectoryStore
from art_langgraph.trajectory import Scenario, Trajectory, plain


class _ProcessHandler(BaseCallbackHandler):
    """Keeps one ARTCallbackHandler per root run and stores its trajectory when the root run ends."""

    run_inline = True

    def __init__(self) -> None:
        self.store: TrajectoryStore | None = None
        self._roots: dict[UUID, tuple[Trajectory, ARTCallbackHandler]] = {}
        self._root_of: dict[UUID, UUID] = {}
        self._lock = threading.Lock()
        self._finished: queue.SimpleQueue[Trajectory | threading.Event] = queue.SimpleQueue()
        self._writer: threading.Thread | None = None

    def on_chain_start(
        self, serialized: dict[str, Any], inputs: Any, *, run_id: UUID, parent_run_id: UUID | None = None, **kwargs: Any
    ) -> None:
        if self.store is None:
            return
        if parent_run_id is None:
            if current() is not None:  # an explicit rollout records itself
                return
            trajectory = Trajectory(scenario=Scenario(input=plain(inputs)))
            trajectory.metadata = {"run_id": str(run_id), "name": kwargs.get("name"), **(kwargs.get("metadata") or {})}
            with self._lock:
                self._roots[run_id] = (trajectory, ARTCallbackHandler())
        if handler := self._adopt(run_id, parent_run_id):
            handler.on_chain_start(serialized, inputs, run_id=run_id, parent_run_id=parent_run_id, **kwargs)

    def on_chain_end(self, outputs: Any, *, run_id: UUID, **kwargs: Any) -> None:
        if handler := self._handler(run_id):
            handler.on_chain_end(outputs, run_id=run_id, **kwargs)
            self._finish(run_id, outputs, None)

    def on_chain_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        if handler := self._handler(run_id):
            handler.on_chain_error(error, run_id=run_id, **kwargs)
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
        if handler := self._adopt(run_id, parent_run_id):
            handler.on_chat_model_start(serialized, messages, run_id=run_id, parent_run_id=parent_run_id, **kwargs)

    def on_llm_end(self, response: Any, *, run_id: UUID, **kwargs: Any) -> None:
        if handler := self._handler(run_id):
            handler.on_llm_end(response, run_id=run_id, **kwargs)

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        if handler := self._handler(run_id):
            handler.on_llm_error(error, run_id=run_id, **kwargs)

    def on_tool_start(
        self,
        serialized: dict[str, Any],
        input_str: str,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        **kwargs: Any,
    ) -> None:
        if handler := self._adopt(run_id, parent_run_id):
            handler.on_tool_start(serialized, input_str, run_id=run_id, parent_run_id=parent_run_id, **kwargs)

    def on_tool_end(self, output: Any, *, run_id: UUID, **kwargs: Any) -> None:
        if handler := self._handler(run_id):
            handler.on_tool_end(output, run_id=run_id, **kwargs)

    def on_tool_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        if handler := self._handler(run_id):
            handler.on_tool_error(error, run_id=run_id, **kwargs)

    def flush(self) -> None:
        """Waits until all finished runs are on disk."""
        if self._writer is not None:
            written = threading.Event()
            self._finished.put(written)
            written.wait()

    def _adopt(self, run_id: UUID, parent_run_id: UUID | None) -> ARTCallbackHandler | None:
        with self._lock:
            root = self._root_of.get(parent_run_id) if parent_run_id else (run_id if run_id in self._roots else None)
            if root is None:
                return None
            self._root_of[run_id] = root
            return self._roots[root][1]

    def _handler(self, run_id: UUID) -> ARTCallbackHandler | None:
        with self._lock:
            root = self._root_of.get(run_id)
            return self._roots[root][1] if root in self._roots else None

    def _finish(self, run_id: UUID, output: Any, error: str | None) -> None:
        with self._lock:
            if run_id not in self._roots:
                return
            trajectory, handler = self._roots.pop(run_id)
            self._root_of = {run: root for run, root in self._root_of.items() if root != run_id}
        trajectory.output, trajectory.error = output, error
        trajectory.completions = handler.recorder.completions
        trajectory.tool_calls = handler.recorder.tool_calls
        trajectory.nodes = handler.recorder.nodes
        trajectory.seconds = time.time() - trajectory.started
        if trajectory.completions:  # a chain that asked no model is no run of an agent
            self._finished.put(trajectory)

    def start_writer(self) -> None:
        if self._writer is None:
            self._writer = threading.Thread(target=self._write, name="art-capture", daemon=True)
            self._writer.start()

    def _write(self) -> None:
        """Off the event loop: a blocking call in a callback would stall it."""
        while True:
            item = self._finished.get()
            if isinstance(item, threading.Event):
                item.set()
            elif self.store is not None:
                self.store.add(item)


_handler = _ProcessHandler()
# The default is what reaches every task of a server; a plain `.set()` would be lost in them.
_hook: ContextVar[BaseCallbackHandler | None] = ContextVar("art_capture", default=_handler)
_registered = False


def install(store: TrajectoryStore | None = None) -> None:
    """Captures every graph that this process runs from now on, one trajectory per run, into `store`.

    Runs inside `rollout` record themselves and are left out. Calling it again changes the store.
    """
    global _registered
    _handler.store = TrajectoryStore() if store is None else store
    _handler.start_writer()
    if not _registered:
        register_configure_hook(_hook, inheritable=True)
        _registered = True


def uninstall() -> None:
    """Stops capturing, after writing what has finished."""
    flush()
    _handler.store = None


def flush() -> None:
    """Waits until all finished runs are in the store."""
    _handler.flush()
