"""What has happened so far in one run of a graph. Filled from several threads."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Collection
from typing import Any, Literal
from uuid import UUID

from art_langgraph.trajectory import CompletionCall, NodeRun, Place, ToolCall

_OF_THE_TOOL = frozenset({"tool", "arguments", "tool_call_id", "started", "seconds"})
"""Fields of a tool call that LangChain knows, not the MCP server."""


class Recorder:
    """What has happened so far in one run of a graph."""

    def __init__(self) -> None:
        self.completions: list[CompletionCall] = []
        self.tool_calls: list[ToolCall] = []
        self.nodes: list[NodeRun] = []
        self.on_completion: Callable[[CompletionCall], None] | None = None
        self._open_tools: dict[UUID, ToolCall] = {}
        self._lock = threading.Lock()

    def completion(self, call: CompletionCall) -> None:
        with self._lock:
            if call.id is not None and any(one.id == call.id for one in self.completions):
                call.cached = True
            self.completions.append(call)
        if self.on_completion:
            self.on_completion(call)

    def tool_started(self, call: ToolCall, run_id: UUID) -> None:
        with self._lock:
            self.tool_calls.append(call)
            self._open_tools[run_id] = call

    def tool_ended(self, run_id: UUID) -> None:
        with self._lock:
            self._open_tools.pop(run_id, None)

    def tool_refused(self, call: ToolCall) -> None:
        """Adds a call that the model made and no tool answered, with the model's arguments; unless it is known."""
        with self._lock:
            if any(one.tool_call_id == call.tool_call_id for one in self.tool_calls):
                return
            for completion in self.completions:
                for asked in (completion.message or {}).get("tool_calls") or ():
                    if asked["id"] == call.tool_call_id:
                        call.tool = asked["function"]["name"]
                        call.arguments = _arguments(asked["function"]["arguments"])
            self.tool_calls.append(call)

    def mcp_call(self, call: ToolCall, run_id: UUID | None = None) -> None:
        """Adds what is known of a call over MCP to the LangChain tool call that made it, or as a call of its own.

        run_id: of the tool that makes it. A tool of another name may make several; they get its place and id.
        """
        with self._lock:
            above = self._open_tools.get(run_id) if run_id else None
            for known in [above] if above else list(self._open_tools.values()):
                if known.server is None and known.tool == call.tool and known.arguments == call.arguments:
                    for name in ToolCall.model_fields.keys() - Place.model_fields.keys() - _OF_THE_TOOL:
                        setattr(known, name, getattr(call, name))
                    return
            if above:
                place = {name: getattr(above, name) for name in Place.model_fields}
                call = call.model_copy(update={**place, "tool_call_id": above.tool_call_id})
            self.tool_calls.append(call)

    def node(self, run: NodeRun) -> None:
        with self._lock:
            self.nodes.append(run)

    def supersede(self, attempts: Collection[str | None], why: Literal["retry", "resume"]) -> None:
        """Node runs were done again: what happened in them does not count."""
        with self._lock:
            for one in self.completions:
                if one.attempt in attempts and one.superseded is None:
                    one.superseded = why


def _arguments(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        found = text
    return found if isinstance(found, dict) else {"input": found}
