"""Capture without touching the graph: `install()` attaches to every LangChain run of the process.

With ART_CAPTURE=1 in the environment, importing `art_langgraph.capture` installs it.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.documents import Document
from langchain_core.outputs import ChatGeneration, LLMResult
from langchain_core.tracers.context import register_configure_hook

from art_langgraph.background import reports
from art_langgraph.background.background import at_exit
from art_langgraph.background.release import release
from art_langgraph.capture.answer import completion_id
from art_langgraph.capture.graph_run import error_text
from art_langgraph.capture.handler import ARTCallbackHandler
from art_langgraph.capture.handover import take_up_rollout
from art_langgraph.capture.remote.outbox import Outbox
from art_langgraph.capture.scope import Scope, enclosing_run, explicit
from art_langgraph.capture.writer import Writer
from art_langgraph.notices import warn_once
from art_langgraph.store import TrajectoryStore
from trainer_server.wire import ARTError

log = logging.getLogger("art_langgraph")

_PATIENCE = 5.0
"""Seconds for which the record of a remote run waits, at most, until the run is in the store."""
_LONGEST = 3600.0
"""Seconds after which a model call or a retriever that nothing encloses is taken to be over, however it ended."""


@dataclass(slots=True, eq=False)
class _Root:
    """A run that nothing encloses, under way."""

    handler: ARTCallbackHandler
    taken_up: bool
    """Whether the run belongs to a rollout of another process, which may still call when this run has ended."""
    members: set[UUID] = field(default_factory=set)
    writer: Writer | None = None
    """Of the store that has the beginning of the run."""
    stored_count: int = 0
    """Completions of the run that this store has."""


class _ProcessHandler(BaseCallbackHandler):
    """Gives every root run a handler of its own, and stores its trajectory when it ends."""

    run_inline = True

    def __init__(self) -> None:
        self.writer: Writer | None = None
        self.outbox = Outbox(self._flush_writer)
        self._roots: dict[UUID, _Root] = {}
        self._root_of: dict[UUID, UUID] = {}
        self._bare: dict[UUID, float] = {}
        """Roots that are no chains, with the time of their start, in its order: when they are cancelled, LangChain
        reports no end."""
        self._lock = threading.Lock()

    def reset_after_fork(self) -> None:
        """In the child of a fork: another thread may have held the lock, and calls under way belong to the parent."""
        self._lock = threading.Lock()
        self._bare = {}

    def _flush_writer(self) -> None:
        """Returns when ended runs are in the store, or when it cannot be written, which the writer says."""
        if self.writer:
            with suppress(ARTError):
                self.writer.flush(_PATIENCE)

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

    def on_chat_model_start(
        self,
        serialized: dict[str, Any],
        messages: Any,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        **kwargs: Any,
    ) -> None:
        if parent_run_id is None and (enclosing := enclosing_run())[0]:
            parent_run_id, kwargs["metadata"] = enclosing
        # A call outside of any chain - in a bare thread, say - is a trajectory of its own: less detail, nothing lost.
        if root := self._adopt(run_id, parent_run_id, {"messages": messages[0]}, kwargs, bare=True):
            root.handler.on_chat_model_start(serialized, messages, run_id=run_id, parent_run_id=parent_run_id, **kwargs)

    def on_llm_end(self, response: LLMResult, *, run_id: UUID, **kwargs: Any) -> None:
        answers = [answer.message for answer in response.generations[0] if isinstance(answer, ChatGeneration)]
        if root := self._root(run_id):
            root.handler.on_llm_end(response, run_id=run_id, **kwargs)
            self._finish(run_id, {"messages": answers}, None)
        elif self.writer and explicit() is None and any(completion_id(answer) for answer in answers):
            warn_once(
                "an answer of the trainer server belongs to no recorded run: the run began before `install()` was "
                "called, or had ended when the answer came",
                "Call `install()` before the first run, and wait in the graph for all model calls",
            )

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

    def on_retriever_start(
        self,
        serialized: dict[str, Any],
        query: str,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        **kwargs: Any,
    ) -> None:
        if root := self._adopt(run_id, parent_run_id, query, kwargs, bare=True):
            root.handler.on_retriever_start(serialized, query, run_id=run_id, parent_run_id=parent_run_id, **kwargs)

    def on_retriever_end(self, documents: Sequence[Document], *, run_id: UUID, **kwargs: Any) -> None:
        if root := self._root(run_id):
            root.handler.on_retriever_end(documents, run_id=run_id, **kwargs)
            self._finish(run_id, documents, None)

    def on_chain_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        self._fail(ARTCallbackHandler.on_chain_error, error, run_id, kwargs)

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        self._fail(ARTCallbackHandler.on_llm_error, error, run_id, kwargs)

    def on_tool_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        self._fail(ARTCallbackHandler.on_tool_error, error, run_id, kwargs)

    def on_retriever_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        self._fail(ARTCallbackHandler.on_retriever_error, error, run_id, kwargs)

    def _fail(
        self, on_error: Callable[..., None], error: BaseException, run_id: UUID, kwargs: Mapping[str, Any]
    ) -> None:
        if root := self._root(run_id):
            on_error(root.handler, error, run_id=run_id, **kwargs)
            self._finish(run_id, None, error_text(error))

    def _adopt(
        self, run_id: UUID, parent: UUID | None, inputs: Any, kwargs: dict[str, Any], *, bare: bool = False
    ) -> _Root | None:
        """Finds the root above a run that starts; a run without a parent is one. bare: It is no chain."""
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
        now = time.monotonic()
        self.give_up(now - _LONGEST)
        root = self._begin(run_id, inputs, kwargs)
        with self._lock:
            self._roots[run_id] = root
            self._root_of[run_id] = run_id
            if bare:
                self._bare[run_id] = now
        return root

    def _begin(self, run_id: UUID, inputs: Any, kwargs: dict[str, Any]) -> _Root:
        metadata = kwargs.get("metadata") or {}
        scope, facts = take_up_rollout(metadata)
        root = _Root(ARTCallbackHandler(scope), bool(facts), {run_id})
        root.handler.graph.note_start(run_id, inputs, kwargs.get("name"), metadata, **facts)
        root.handler.recorder.on_completion = lambda: self._store_completions(root)
        self.outbox.note_start(scope, root.handler.trajectory().id)
        return root

    def _store_completions(self, root: _Root) -> None:
        """Stores the answers of a run that are not in the store yet; after a change of the store, all of them."""
        trajectory = root.handler.trajectory()
        with self._lock:
            if self.writer is None:
                return
            if self.writer is not root.writer:
                self.writer.note_start(trajectory)
                root.writer, root.stored_count = self.writer, 0
            for call in trajectory.completions[root.stored_count :]:
                self.writer.note_completion(trajectory, call)
                root.stored_count += 1

    def _root(self, run_id: UUID | None) -> _Root | None:
        with self._lock:
            above = self._root_of.get(run_id) if run_id else None
            return self._roots[above] if above else None

    def _finish(self, run_id: UUID, output: Any, error: str | None) -> None:
        with self._lock:
            root = self._roots.pop(run_id, None)
            if root is None:
                return
            self._bare.pop(run_id, None)
            for member in root.members:
                self._root_of.pop(member, None)
        root.handler.graph.note_end(run_id, output, error)
        root.handler.close()
        trajectory = root.handler.trajectory()
        if not root.taken_up:
            release(root.handler.scope.rollout_id, root.handler.scope.servers)
        # A chain that called no model, and waits for no person, is no run of an agent.
        is_agent = trajectory.completions or trajectory.resumes or trajectory.waiting
        with self._lock:
            writer = self.writer if is_agent else None
            if writer:
                writer.note_end(trajectory)
        if writer and not root.taken_up:  # the rollout that waits for it reports all of its parts
            reports.report(trajectory, root.handler.scope.servers)
        self.outbox.note_end(root.handler.scope, trajectory)

    def give_up(self, before: float) -> None:
        """Ends model calls and retrievers that nothing encloses, and that began before a time."""
        with self._lock:
            stale_runs = list(takewhile(lambda run_id: self._bare[run_id] < before, self._bare))
        for run_id in stale_runs:
            self._finish(run_id, None, "no end was reported: it was cancelled, or the process ended")

    def write_to(self, store: TrajectoryStore | None) -> None:
        """Changes the store, after writing what has finished into the one before. None: nothing is captured."""
        with self._lock:
            before = self.writer
            if before is not None and store is not None and before.store.name == store.name:
                return
            self.writer = None if store is None else Writer(store)
        if before and (problem := before.close()):
            log.error("%s", problem)


_handler = _ProcessHandler()
if sys.platform != "win32":  # which has no fork
    os.register_at_fork(after_in_child=_handler.reset_after_fork)
# The default is what reaches every task of a server; a plain `.set()` would be lost in them.
_hook: ContextVar[BaseCallbackHandler | None] = ContextVar("art_capture", default=_handler)
_in_hooks = False
"""Whether LangChain has the handler, which is never taken out again."""


def install(store: TrajectoryStore | None = None) -> None:
    """Captures every graph that this process runs from now on, one trajectory per run, into `store`.

    Runs inside `rollout` record themselves and are left out. Calling it again changes the store, also of runs that are
    under way. While the store cannot be written, runs wait in memory; when the process ends, or when too many wait,
    they go to a file, and a message says to which.

    Args:
        store: Where the runs go; None: `trajectories.sqlite` under ART_HOME.
    """
    global _in_hooks
    _handler.write_to(TrajectoryStore() if store is None else store)
    if not _in_hooks:
        register_configure_hook(_hook, inheritable=True)
        at_exit(_close)
        _in_hooks = True


def uninstall() -> None:
    """Stops capturing, after writing what has finished. What cannot be written goes to a file, and an error says so."""
    _handler.write_to(None)


def flush(timeout: float = 30.0) -> None:
    """Waits until all finished runs are in the store, and those of rollouts of other processes are sent home.

    Args:
        timeout: Seconds to wait at most.

    Raises:
        ARTError: They are not there after `timeout` seconds. The message says why.
    """
    if _handler.writer:
        _handler.writer.flush(timeout)
        _handler.outbox.flush(timeout)


def _close() -> None:
    """Before the process ends: prints to standard error what could not be written; log handlers may be closed."""
    _handler.give_up(float("inf"))
    _handler.outbox.close(_PATIENCE)
    if _handler.writer and (problem := _handler.writer.close()):
        print(f"art-langgraph: {problem}", file=sys.stderr)


if os.environ.get("ART_CAPTURE") == "1":
    install()
