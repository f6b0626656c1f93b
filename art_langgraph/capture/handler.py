"""Hears what LangChain and LangGraph report while a graph runs, and writes it down.

Events of the end of something carry no metadata, so all is keyed by run id. Events may come from several threads.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import BaseMessage, ToolMessage, convert_to_openai_messages
from langchain_core.outputs import ChatGeneration, LLMResult
from langgraph.errors import GraphBubbleUp, GraphInterrupt

from art_langgraph.capture.recorder import Recorder
from art_langgraph.capture.scope import Scope, enclosing_run
from art_langgraph.trajectory import CompletionCall, NodeRun, Place, ToolCall

_HIDDEN = "langsmith:hidden"
"""Tag of LangGraph's own bookkeeping nodes."""


@dataclass(slots=True)
class _Run:
    """A chain or tool under way or done. node: set where it is the run of a graph's node."""

    parent: UUID | None
    namespace: str = ""
    node: NodeRun | None = None
    checkpointed: bool = False


class ARTCallbackHandler(BaseCallbackHandler):
    """Records model calls, tool calls and node runs, with their place in the graph.

    Pass it in a config's `callbacks`, or let `rollout` do so. One handler belongs to one run of a graph.
    """

    run_inline = True

    def __init__(self, scope: Scope | None = None) -> None:
        self.scope = scope or Scope()
        self.root: UUID | None = None
        """Of the runs that it hears, the first that nothing encloses."""
        self._runs: dict[UUID, _Run] = {}
        self._models: dict[UUID, CompletionCall] = {}
        self._tools: dict[UUID, ToolCall] = {}
        self._lock = threading.Lock()

    @property
    def recorder(self) -> Recorder:
        """What has been recorded so far."""
        return self.scope.recorder

    def scope_of(self, run_id: UUID | None) -> Scope | None:
        """The rollout that a run belongs to."""
        return self.scope

    def on_chain_start(
        self,
        serialized: dict[str, Any],
        inputs: Any,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        metadata = metadata or {}
        namespace = str(metadata.get("langgraph_checkpoint_ns") or "")
        run = _Run(parent_run_id, namespace, checkpointed="thread_id" in metadata)
        with self._lock:
            self.root = self.root or (run_id if parent_run_id is None else None)
            above = self._runs.get(parent_run_id) if parent_run_id else None
            self._runs[run_id] = run
            # A node's run opens a namespace; the chains inside it carry the same metadata.
            opens = bool(namespace) and (above is None or above.namespace != namespace)
            if not opens or kwargs.get("name") != metadata.get("langgraph_node") or _HIDDEN in (tags or []):
                return
        node = NodeRun(**self._place(parent_run_id, metadata), started=time.time())
        node.parent, node.attempt = node.attempt, str(run_id)
        again = self._superseded_by(node)
        run.node = node
        self.recorder.node(node)
        for why, attempts in again.items():
            self.recorder.supersede(attempts, why)

    def _superseded_by(self, node: NodeRun) -> dict[Literal["retry", "resume"], set[str | None]]:
        """Earlier attempts at a node, and what their subgraphs did unless a checkpointer kept it for the retry."""
        found: dict[Literal["retry", "resume"], set[str | None]] = {}
        with self._lock:
            runs = [run for run in self._runs.values() if run.node]  # in order of their start: outer ones first
        for run in runs:
            if run.node and run.node.namespace == node.namespace and (run.node.error or run.node.interrupted):
                attempts = {run.node.attempt}
                if run.node.error and not run.checkpointed:
                    for inner in runs:
                        if inner.node and inner.node.parent in attempts:
                            attempts.add(inner.node.attempt)
                found.setdefault("resume" if run.node.interrupted else "retry", set()).update(attempts)
        return found

    def on_chain_end(self, outputs: Any, *, run_id: UUID, **kwargs: Any) -> None:
        if node := self._node(run_id):
            node.seconds = time.time() - node.started
            for message in _messages(outputs):
                if isinstance(message, ToolMessage) and message.status == "error":
                    # A tool that the graph does not have never runs: no other event tells of the call.
                    refused = ToolCall(
                        tool=message.name or "", tool_call_id=message.tool_call_id, result=message.text, is_error=True,
                        started=time.time(), **node.model_dump(include=set(Place.model_fields)),
                    )  # fmt: skip
                    self.recorder.tool_refused(refused)

    def on_chain_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        if node := self._node(run_id):
            node.seconds = time.time() - node.started
            if isinstance(error, GraphInterrupt):
                node.interrupted = True
            elif not isinstance(error, GraphBubbleUp):  # how a node hands over to its parent graph
                node.error = f"{type(error).__name__}: {error}"

    def on_chat_model_start(
        self,
        serialized: dict[str, Any],
        messages: list[list[BaseMessage]],
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if parent_run_id is None:
            parent_run_id, metadata = enclosing_run()
        call = CompletionCall(
            id=None,
            model=(kwargs.get("invocation_params") or {}).get("model"),
            messages=_openai(messages[0]),
            started=time.time(),
            **self._place(parent_run_id, metadata or {}),
        )
        with self._lock:
            self._models[run_id] = call

    def on_llm_end(self, response: LLMResult, *, run_id: UUID, **kwargs: Any) -> None:
        with self._lock:
            started = self._models.pop(run_id, None)
        if started is None:
            return
        seconds = time.time() - started.started
        output = response.llm_output or {}  # with n > 1 the messages lack what is said here
        whole, served = _ours(output.get("system_fingerprint")), output.get("model_name")
        for index, generation in enumerate(response.generations[0]):
            if not isinstance(generation, ChatGeneration):
                continue
            call = started.model_copy(update={"seconds": seconds})
            one = completion_id(generation.message) or whole
            call.cached = _from_cache(generation.message)
            call.id = one if one is None or index == 0 else f"{one}.{index}"
            if call.id:
                call.version = _version(generation.message.response_metadata.get("model_name") or served)
            call.message = _openai([generation.message])[0]
            if thought := generation.message.additional_kwargs.get("reasoning_content"):
                call.message["reasoning_content"] = thought
            self.recorder.completion(call)

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        with self._lock:
            call = self._models.pop(run_id, None)
        if call:
            call.seconds = time.time() - call.started
            call.error = f"{type(error).__name__}: {error}"
            self.recorder.completion(call)

    def on_tool_start(
        self,
        serialized: dict[str, Any],
        input_str: str,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        metadata: dict[str, Any] | None = None,
        inputs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        call = ToolCall(
            tool=str((serialized or {}).get("name") or kwargs.get("name")),
            arguments=inputs if isinstance(inputs, dict) else {"input": input_str},
            tool_call_id=kwargs.get("tool_call_id"),
            started=time.time(),
            **self._place(parent_run_id, metadata or {}),
        )
        with self._lock:
            self._tools[run_id] = call
            above = self._runs.get(parent_run_id) if parent_run_id else None
            self._runs[run_id] = _Run(parent_run_id, above.namespace if above else "")  # a tool may run a graph
        self.recorder.tool_started(call, run_id)

    def on_tool_end(self, output: Any, *, run_id: UUID, **kwargs: Any) -> None:
        with self._lock:
            call = self._tools.pop(run_id, None)
        if call is None:
            return
        call.seconds = time.time() - call.started
        if isinstance(output, ToolMessage):
            call.tool_call_id = call.tool_call_id or output.tool_call_id
            call.is_error = call.is_error or output.status == "error"
        if call.result is None:
            call.result = output.text if isinstance(output, BaseMessage) else str(output)
        self.recorder.tool_ended(run_id)

    def on_tool_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        with self._lock:
            call = self._tools.pop(run_id, None)
        if call:
            call.seconds = time.time() - call.started
            call.is_error, call.result = True, f"{type(error).__name__}: {error}"
            self.recorder.tool_ended(run_id)

    def _node(self, run_id: UUID) -> NodeRun | None:
        run = self._runs.get(run_id)
        return run.node if run else None

    def _place(self, parent: UUID | None, metadata: dict[str, Any]) -> dict[str, Any]:
        """Where something under `parent` runs: in the nearest node run above, which is inside the one above that."""
        above: list[str | None] = []
        with self._lock:
            while parent is not None and (run := self._runs.get(parent)) and len(above) < 2:
                if run.node:
                    above.append(run.node.attempt)
                parent = run.parent
        namespace = str(metadata.get("langgraph_checkpoint_ns") or "")
        path = metadata.get("langgraph_path") or ()
        return Place(
            node=metadata.get("langgraph_node"),
            path=[part.partition(":")[0] for part in namespace.split("|") if part],
            namespace=namespace,
            step=metadata.get("langgraph_step"),
            branch=next((one for one in path if type(one) is int), None) if path[:1] == ("__pregel_push",) else None,
            attempt=above[0] if above else None,
            parent=above[1] if len(above) > 1 else None,
        ).model_dump()


def completion_id(message: BaseMessage) -> str | None:
    """The id under which our gateway recorded an answer; None for answers of other servers.

    Our gateway repeats the id as `system_fingerprint`, which every LangChain version keeps, streaming or not.
    """
    return _ours(message.response_metadata.get("system_fingerprint"))


def _ours(fingerprint: object) -> str | None:
    return fingerprint if isinstance(fingerprint, str) and fingerprint.startswith("chatcmpl-") else None


def _version(served: object) -> int | None:
    """The version in the name that our gateway answers under: `policy@version`, or the base model's name."""
    _, at, number = str(served).rpartition("@")
    return int(number) if at and number.isdigit() else None


def _messages(outputs: Any) -> Sequence[Any]:
    """The messages among what a node wrote."""
    found = outputs.get("messages", ()) if isinstance(outputs, dict) else outputs
    return found if isinstance(found, list | tuple) else ()


def _from_cache(message: BaseMessage) -> bool:
    """LangChain marks what its cache answered by a cost of nothing."""
    usage: Any = getattr(message, "usage_metadata", None) or {}
    return bool(usage.get("total_cost") == 0)


def _openai(messages: Sequence[BaseMessage]) -> list[dict[str, Any]]:
    try:
        found = convert_to_openai_messages(messages)
    except (ValueError, KeyError, TypeError):  # content of a kind that OpenAI has no name for: kept as text
        found = [{"role": message.type, "content": message.text} for message in messages]
    return found if isinstance(found, list) else [found]
