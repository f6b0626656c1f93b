"""Collects what happens in a run of a graph. Several threads may write to it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from uuid import UUID

from art_langgraph.attempts import Attempts, Supersession, remark
from art_langgraph.trajectory import CompletionCall, NodeRun, Place, ToolCall
from trainer_server.wire.tool_arguments import arguments_input

_OF_THE_TOOL = frozenset({"tool", "arguments", "tool_call_id", "started", "seconds"})
"""Fields of a tool call that come from LangChain, not from the MCP server."""


class Recorder:
    """Collects what happens in a run of a graph: model calls, tool calls and node runs, in their order."""

    def __init__(self) -> None:
        self.completions: list[CompletionCall] = []
        self.tool_calls: list[ToolCall] = []
        self.nodes: list[NodeRun] = []
        self.on_completion: Callable[[], None] | None = None
        """Called after a model call was added."""
        self._open_tools: dict[UUID, ToolCall] = {}
        self._attempts = Attempts()
        self._superseded: dict[str | None, Supersession] = {}
        """As the completions are marked."""
        self._lock = threading.Lock()

    def add_completion(self, call: CompletionCall) -> None:
        """Adds a model call. A completion that is known already came from a cache, and is marked as cached."""
        with self._lock:
            call.superseded = call.superseded or self._attempts.supersessions.get(call.attempt)
            if call.id is not None and any(earlier.id == call.id for earlier in self.completions):
                call.cached = True
            self.completions.append(call)
        if self.on_completion:
            self.on_completion()

    def open_tool(self, call: ToolCall, run_id: UUID) -> None:
        """Adds a tool call that has started. run_id: LangChain's id of the tool's run."""
        with self._lock:
            self.tool_calls.append(call)
            self._open_tools[run_id] = call

    def close_tool(self, run_id: UUID) -> None:
        """Marks a tool's run as ended: calls over MCP no longer belong to it."""
        with self._lock:
            self._open_tools.pop(run_id, None)

    def add_unanswered_tool(self, call: ToolCall) -> None:
        """Adds a tool call of the model that no tool answered, with the model's arguments, unless it is recorded.

        A call that no model of this run made is in the history of an earlier run, and is not added.
        """
        with self._lock:
            if any(earlier.tool_call_id == call.tool_call_id for earlier in self.tool_calls):
                return
            for answer in reversed(self.completions):
                for tool_call in reversed((answer.message or {}).get("tool_calls") or ()):
                    if tool_call["id"] == call.tool_call_id:
                        function = tool_call["function"]
                        call.tool, call.arguments = function["name"], arguments_input(function["arguments"])
                        self.tool_calls.append(call)
                        return

    def add_mcp_call(self, call: ToolCall, run_id: UUID | None = None) -> None:
        """Records a call over MCP, in the LangChain tool call that made it or as a call of its own.

        A LangChain tool with another name may make several calls. They get its place and its tool call id.

        Args:
            call: The call, as the MCP client saw it.
            run_id: LangChain's id of the run of the tool that made it; None: unknown.
        """
        with self._lock:
            above = self._open_tools.get(run_id) if run_id else None
            for tool in [above] if above else list(self._open_tools.values()):
                if tool.server is None and tool.tool == call.tool and tool.arguments == call.arguments:
                    for name in ToolCall.model_fields.keys() - Place.model_fields.keys() - _OF_THE_TOOL:
                        setattr(tool, name, getattr(call, name))
                    return
            if above:
                place = {name: getattr(above, name) for name in Place.model_fields}
                call = call.model_copy(update={**place, "tool_call_id": above.tool_call_id})
            self.tool_calls.append(call)

    def add_node(self, run: NodeRun) -> None:
        """Adds a run of a node that has started. Completions of the attempts that it repeats no longer count."""
        with self._lock:
            self.nodes.append(run)
            self._attempts.add(run)
            if self._attempts.supersessions != self._superseded:
                remark(self.completions, self._superseded, self._attempts.supersessions)
                self._superseded = dict(self._attempts.supersessions)
