"""Records MCP tool invocations into the trajectory of the rollout that makes them."""

from __future__ import annotations

import asyncio
import inspect
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any, Self, TypeVar

from langchain_core.messages import BaseMessage
from pydantic import BaseModel

from art_langgraph.capture.scope import current, enclosing_run
from art_langgraph.trajectory import ToolCall
from art_mcp.client.connection.sdk import Progress, failure_of, wire
from art_mcp.client.result import CallResult

MAX_PROGRESS = 100
"""Maximum number of progress notifications of a call that are kept."""

Session = TypeVar("Session")


class Record:
    """Records a tool call that is running. As a context manager it also records a call whose caller is cancelled.

    The server may carry out a call after its caller was cancelled.

    Args:
        server: Name of the server.
        version: Version of the server. None: unknown.
        tool: Name of the tool.
        arguments: Its arguments. They are stored as JSON.
    """

    def __init__(self, server: str, version: str | None, tool: str, arguments: dict[str, Any]) -> None:
        self._began = time.monotonic()
        self._call = ToolCall(
            tool=tool,
            arguments=json.loads(json.dumps(arguments, default=str)),
            server=server,
            server_version=version,
            started=time.time(),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and issubclass(kind, asyncio.CancelledError):
            self.end(CallResult("the caller did not wait for the answer", is_error=True, failure="cancelled"))

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Keeps a progress notification of the server."""
        if len(self._call.progress) < MAX_PROGRESS:
            self._call.progress.append({"progress": progress, "total": total, "message": message})

    def end(self, result: CallResult, tool_call_id: str | None = None) -> None:
        """Adds the call to the current trajectory, if there is one.

        Args:
            result: The result of the call.
            tool_call_id: Id that the model gave to the tool call. None: unknown.
        """
        if (scope := current()) is None:
            return
        call = self._call
        call.seconds = time.monotonic() - self._began
        call.result, call.structured, call.content = result.text, result.structured, result.content
        call.is_error, call.failure, call.tool_call_id = result.is_error, result.failure, tool_call_id
        scope.recorder.add_mcp_call(call, enclosing_run()[0])


def capture(session: Session, server: str | None = None) -> Session:
    """Records every `call_tool` of a session from now on.

    Results and exceptions reach the caller unchanged, and the caller's progress callback is still called.

    Args:
        session: An `mcp.ClientSession` of SDK 1 or 2, or an `mcp.Client` of SDK 2.
        server: Name of the server. None takes the name that the server gives in its answer to `initialize`. With SDK 1
            call `capture` before `initialize`; otherwise the name is "unknown".

    Returns:
        The same session.
    """
    target: Any = session
    call_tool, initialize = target.call_tool, getattr(target, "initialize", None)
    parameters = inspect.signature(call_tool)
    server_info: dict[str, Any] = {}

    async def initialize_session(*args: Any, **kwargs: Any) -> Any:
        assert initialize is not None
        answer = await initialize(*args, **kwargs)
        server_info.update(wire(answer).get("serverInfo", {}))
        return answer

    async def record_call(*args: Any, **kwargs: Any) -> Any:
        call = parameters.bind(*args, **kwargs)
        info = getattr(target, "server_info", None)
        info = wire(info) if isinstance(info, BaseModel) else server_info
        name, arguments = call.arguments["name"], call.arguments.get("arguments") or {}
        with Record(server or info.get("name", "unknown"), info.get("version"), name, arguments) as record:
            call.arguments["progress_callback"] = _both(record.progress, call.arguments.get("progress_callback"))
            return await _record_outcome(record, lambda: call_tool(*call.args, **call.kwargs))

    target.call_tool = record_call
    if initialize is not None:
        target.initialize = initialize_session
    return session


class CaptureInterceptor:
    """Records every tool call of langchain-mcp-adapters, as its `ToolCallInterceptor`.

    Use it as `MultiServerMCPClient(…, tool_interceptors=[CaptureInterceptor()])`.
    """

    async def __call__(self, request: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:
        with Record(request.server_name, None, request.name, request.args) as record:
            return await _record_outcome(
                record, lambda: handler(request), getattr(request.runtime, "tool_call_id", None)
            )


async def _record_outcome(record: Record, call: Callable[[], Awaitable[Any]], tool_call_id: str | None = None) -> Any:
    """Runs a call, records its result or exception, and returns the result or raises the exception."""
    try:
        answer = await call()
    except Exception as error:  # of any kind, as the call runs foreign code
        failure = failure_of(error)
        record.end(CallResult(f"{type(error).__name__}: {error}", None, True, failure=failure.failure), tool_call_id)
        raise
    if isinstance(answer, BaseMessage):  # another interceptor answered instead of the server
        record.end(CallResult(answer.text, is_error=getattr(answer, "status", "") == "error"), tool_call_id)
    elif isinstance(answer, BaseModel):
        record.end(CallResult.of(wire(answer)), tool_call_id)
    return answer


def _both(ours: Progress, theirs: Progress | None) -> Progress:
    """A progress callback that calls both callbacks, the second if it is not None."""

    async def notify(progress: float, total: float | None, message: str | None) -> None:
        await ours(progress, total, message)
        if theirs:
            await theirs(progress, total, message)

    return notify
