"""Records MCP tool invocations into the trajectory of the rollout that makes them."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any

from art_langgraph.scope import current
from art_langgraph.trajectory import ToolCall


@dataclass(frozen=True, slots=True)
class CallResult:
    """What a server answered. text: its text parts, joined. structured: its structured content, if any."""

    text: str
    structured: Any
    is_error: bool


def record(server: str, tool: str, arguments: dict[str, Any], result: CallResult, started: float) -> None:
    """Adds a call to the current trajectory, if there is one. started: Unix time, seconds."""
    if (scope := current()) is None:
        return
    scope.recorder.mcp_call(
        ToolCall(
            tool=tool,
            arguments=json.loads(json.dumps(arguments, default=str)),
            result=result.text,
            structured=result.structured,
            is_error=result.is_error,
            server=server,
            started=started,
            seconds=time.time() - started,
        )
    )
