"""Hears what LangChain and LangGraph report while a graph runs, and writes it down.

Events of the end of something carry no metadata, so all is keyed by run id. Calls may come from several threads.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import BaseMessage, ToolMessage, convert_to_openai_messages
from langchain_core.outputs import ChatGeneration, LLMResult

from art_langgraph.trajectory import CompletionCall, NodeRun, Place, ToolCall


class Recorder:
    """What has happened so far in one run of a graph."""

    def __init__(self) -> None:
        self.completions: list[CompletionCall] = []
        self.tool_calls: list[ToolCall] = []
        self.nodes: list[NodeRun] = []
        self._open_tools: list[ToolCall] = []
        self._lock = threading.Lock()

    def completion(self, call: CompletionCall) -> None:
        with self._lock:
            if call.id is not None and any(one.id == call.id for one in self.completions):
                call.id = None  # a cached answer: trained once
            self.completions.append(call)

    def tool_started(self, call: ToolCall) -> None:
        with self._lock:
            self.tool_calls.append(call)
            self._open_tools.append(call)

    def tool_ended(self, call: ToolCall) -> None:
        with self._lock:
            if call in self._open_tools:
                self._open_tools.remove(call)

    def mcp_call(self, call: ToolCall) -> None:
        """Adds what is known of a call over MCP to the LangChain tool call that made it, or as a call of its own."""
        with self._lock:
            for known in self._open_tools:
                if known.server is None and known.tool == call.tool and known.arguments == call.arguments:
                    known.server, known.structured = call.server, call.structured
                    known.result, known.is_error = call.result, call.is_error
                    return
            self.tool_calls.append(call)

    def node(self, run: NodeRun) -> None:
        with self._lock:
            self.nodes.append(run)

    def supersede(self, failed: NodeRun) -> None:
        """A node failed and was run again in the same namespace: what its earlier attempts did does not count."""
        with self._lock:
            for one in self.completions:
                if one.namespace == failed.namespace and one.attempt == failed.attempt:
                    one.superseded = True


class ARTCallbackHandler(BaseCallbackHandler):
    """Records model calls, tool calls and node runs, with their place in the graph.

    Pass it in a config's `callbacks`, or let `rollout` do so. One handler belongs to one run of a graph.
    """

    run_inline = True

    def __init__(self, recorder: Recorder | None = None) -> None:
        self.recorder = recorder or Recorder()
        self._parents: dict[UUID, UUID | None] = {}
        self._nodes: dict[UUID, NodeRun] = {}
        self._models: dict[UUID, CompletionCall] = {}
        self._tools: dict[UUID, ToolCall] = {}
        self._lock = threading.Lock()

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
        with self._lock:
            self._parents[run_id] = parent_run_id
            is_node = kwargs.get("name") == metadata.get("langgraph_node") is not None and any(
                tag.startswith("graph:step") for tag in tags or []
            )
            if not is_node:
                return
            run = NodeRun(**_place(metadata, str(run_id)), started=time.time())
            failed = [one for one in self.recorder.nodes if one.error and one.namespace == run.namespace]
            self._nodes[run_id] = run
        self.recorder.node(run)
        for earlier in failed:
            self.recorder.supersede(earlier)

    def on_chain_end(self, outputs: Any, *, run_id: UUID, **kwargs: Any) -> None:
        if run := self._nodes.get(run_id):
            run.seconds = time.time() - run.started

    def on_chain_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        if run := self._nodes.get(run_id):
            run.seconds = time.time() - run.started
            run.error = f"{type(error).__name__}: {error}"

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
        place = self._locate(parent_run_id, metadata or {})
        call = CompletionCall(
            id=None,
            model=(kwargs.get("invocation_params") or {}).get("model"),
            messages=_openai(messages[0]),
            started=time.time(),
            **place,
        )
        with self._lock:
            self._models[run_id] = call

    def on_llm_end(self, response: LLMResult, *, run_id: UUID, **kwargs: Any) -> None:
        with self._lock:
            started = self._models.pop(run_id, None)
        if started is None:
            return
        seconds = time.time() - started.started
        for index, generation in enumerate(response.generations[0]):
            if not isinstance(generation, ChatGeneration):
                continue
            call = started.model_copy(update={"seconds": seconds})
            one = completion_id(generation.message)
            call.id = one if one is None or index == 0 else f"{one}.{index}"
            call.message = _openai([generation.message])[0]
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
            **self._locate(parent_run_id, metadata or {}),
        )
        with self._lock:
            self._tools[run_id] = call
        self.recorder.tool_started(call)

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
        self.recorder.tool_ended(call)

    def on_tool_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        with self._lock:
            call = self._tools.pop(run_id, None)
        if call:
            call.seconds = time.time() - call.started
            call.is_error, call.result = True, f"{type(error).__name__}: {error}"
            self.recorder.tool_ended(call)

    def _locate(self, parent: UUID | None, metadata: dict[str, Any]) -> dict[str, Any]:
        """Place of a call; its attempt is the nearest node run above it."""
        with self._lock:
            while parent is not None and parent not in self._nodes:
                parent = self._parents.get(parent)
        return _place(metadata, str(parent) if parent else None)


def completion_id(message: BaseMessage) -> str | None:
    """The id under which our gateway recorded an answer; None for answers of other servers.

    Our gateway repeats the id as `system_fingerprint`, which every LangChain version keeps, streaming or not.
    """
    fingerprint = message.response_metadata.get("system_fingerprint")
    return fingerprint if isinstance(fingerprint, str) and fingerprint.startswith("chatcmpl-") else None


def _place(metadata: dict[str, Any], attempt: str | None) -> dict[str, Any]:
    namespace = str(metadata.get("langgraph_checkpoint_ns") or "")
    return Place(
        node=metadata.get("langgraph_node"),
        path=[part.partition(":")[0] for part in namespace.split("|") if part],
        namespace=namespace,
        step=metadata.get("langgraph_step"),
        attempt=attempt,
    ).model_dump()


def _openai(messages: Sequence[BaseMessage]) -> list[dict[str, Any]]:
    try:
        found = convert_to_openai_messages(messages)
    except (ValueError, KeyError, TypeError):  # content of a kind that OpenAI has no name for: kept as text
        found = [{"role": message.type, "content": message.text} for message in messages]
    return found if isinstance(found, list) else [found]
