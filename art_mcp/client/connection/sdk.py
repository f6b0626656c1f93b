"""Adapter for major versions 1 and 2 of the MCP SDK. No other module depends on the version.

Answers leave this module as the protocol's JSON.
"""

from __future__ import annotations

import inspect
import logging
import shlex
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import version
from typing import Any, TextIO
from urllib.parse import urlsplit, urlunsplit

import anyio
import mcp.types
from mcp import StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from pydantic import AnyUrl, BaseModel, ValidationError

from art_langgraph.client.proxies import AsyncProxyTransport
from art_mcp.client.connection.patience import Patience, patient
from art_mcp.client.connection.tool_filter import ToolFilter, place_of
from art_mcp.validation import Checker
from trainer_server.wire import MCPError

MAJOR = int(version("mcp").partition(".")[0])
"""Major version of the installed SDK."""

LISTS = {
    "tools/list": "list_tools",
    "resources/list": "list_resources",
    "resources/templates/list": "list_resource_templates",
    "prompts/list": "list_prompts",
}
"""Methods of the protocol that return pages of a list, and the names of the SDK's functions for them."""

MAX_EVENT = 256 * 1024 * 1024
"""Maximum number of bytes of an answer over HTTP, for SDK 2, which has a limit. `CallResult` keeps less."""

_HTTP = "httpx2" if MAJOR > 1 else "httpx"
"""What the SDK's HTTP clients are made with."""
_TIMEOUT = {"timeout": 30.0, "read": 300.0}
"""The SDK's timeouts for HTTP, in seconds: a server may hold an answer open for long."""

_SHOWN = 200
"""Characters that a warning shows of a line that cannot be read."""

Progress = Callable[[float, float | None, str | None], Awaitable[None]]
"""Takes the progress, the total and the message of a progress notification. The last two may be None."""


class _Unreadable(logging.Filter):
    """Shortens what the SDK logs of a line of a server that it cannot read, a trace of 20 lines, to the line itself."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, ValidationError):
            line = str(error.errors()[0]["input"])
            record.msg = (
                "an MCP server wrote to its stdout what is no message of MCP: %r. What it prints for people belongs on "
                "its stderr"
            )
            record.args, record.exc_info = (line if len(line) <= _SHOWN else f"{line[: _SHOWN - 1]}…",), None
        return True


logging.getLogger(stdio_client.__module__).addFilter(_Unreadable())


def words_of(command: str) -> list[str]:
    """The words of a command line, as a shell reads it. On Windows a backslash stands for itself, as in C:\\Python.

    Raises:
        ValueError: It has an open quotation.
    """
    reader = shlex.shlex(command, posix=True, punctuation_chars=False)
    reader.whitespace_split, reader.commenters = True, ""
    if sys.platform == "win32":
        reader.escape = ""
    return list(reader)


@dataclass(frozen=True, slots=True)
class Stdio:
    """A server that is a child process.

    Args:
        command: Program and arguments.
        env: Environment variables, added to the few that the SDK passes on, such as HOME and PATH.
        cwd: Working directory. None takes that of this process.
    """

    command: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None

    def __str__(self) -> str:
        return " ".join(self.command)


@dataclass(frozen=True, slots=True)
class Http:
    """A server at a streamable-HTTP URL.

    Args:
        url: The URL.
        headers: HTTP headers of every request.
        auth: Authentication as the SDK's HTTP client takes it, such as the SDK's OAuthClientProvider. None: none.
    """

    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    auth: Any = None

    def __str__(self) -> str:
        """The URL for messages: without user, password, query and fragment, which may have a secret."""
        url = urlsplit(self.url)
        return urlunsplit((url.scheme, url.netloc.rpartition("@")[2], url.path, "", ""))


Target = Stdio | Http


class Channel:
    """An open session of the SDK.

    Args:
        session: The SDK's session or client.
        info: `serverInfo`, `instructions` and `capabilities`, as the server gave them.
        patience: Sends requests again that were refused over HTTP.
    """

    def __init__(self, session: Any, info: dict[str, Any], patience: Patience) -> None:
        self._session = session
        self._patience = patience
        self._outputs: dict[str, Checker] = {}
        """What checks the structured content of tools, by their names."""
        self.info = info

    @property
    def refused(self) -> bool:
        """Whether the server refused the last request until the end, because there are too many."""
        return self._patience.given_up

    async def request(self, method: str, params: Mapping[str, Any], progress: Progress | None) -> dict[str, Any]:
        """Sends a request.

        Args:
            method: `tools/call`, `resources/read`, `initialize`, or a method of LISTS.
            params: Parameters of the method.
            progress: Called for each progress notification of a tool call, or None.

        Returns:
            The answer as the protocol's JSON.

        Raises:
            MCPError: The server answered with an error or not at all, or its answer is invalid.
        """
        try:
            answer = await self._send_request(method, params, progress)
        except ValidationError as error:
            raise MCPError(f"the answer to {method} breaks the protocol: {place_of(error.errors()[0])}") from error
        except Exception as error:  # the SDK raises errors of many kinds for problems of the server
            raise failure_of(error) from error
        fields: dict[str, Any] = wire(answer) if isinstance(answer, BaseModel) else answer
        if method == "tools/list":
            schemas = {tool["name"]: tool.get("outputSchema") for tool in fields.get("tools", ())}
            self._outputs |= {name: Checker(schema) for name, schema in schemas.items() if isinstance(schema, Mapping)}
        elif method == "tools/call" and not fields.get("isError") and (checker := self._outputs.get(params["name"])):
            self._check_output(params["name"], fields, checker)
        return fields

    def _check_output(self, tool: str, answer: Mapping[str, Any], checker: Checker) -> None:
        """Raises MCPError if the structured content of an answer does not fit its schema. The SDK would check it with
        the server's patterns and Python's `re`, which may take for ever."""
        if "structuredContent" not in answer:
            raise MCPError(f"Tool {tool} has an output schema but did not return structured content")
        if wrong := checker.violation(answer["structuredContent"]):
            raise MCPError(f"Invalid structured content returned by tool {tool}: {wrong}")

    async def _send_request(self, method: str, params: Mapping[str, Any], progress: Progress | None) -> Any:
        if method == "initialize":
            return self.info
        if method == "tools/call":
            return await self._session.call_tool(params["name"], params["arguments"], progress_callback=progress)
        if method == "resources/read":
            return await self._session.read_resource(params["uri"] if MAJOR > 1 else AnyUrl(params["uri"]))
        list_page = getattr(self._session, LISTS[method])
        if MAJOR > 1:
            return await list_page(cursor=params.get("cursor"), cache_mode="refresh")
        page = mcp.types.PaginatedRequestParams(cursor=params["cursor"]) if params.get("cursor") else None
        return await list_page(params=page)


@asynccontextmanager
async def open_channel(target: Target, errlog: TextIO, on_change: Callable[[], None]) -> AsyncIterator[Channel]:
    """Opens a session with a server. The same task must enter and leave it.

    Args:
        target: The server.
        errlog: Gets the stderr of a command, and the status lines of failed HTTP requests.
        on_change: Called when the server says that its tools have changed.

    Yields:
        The open session.
    """

    async def handle_message(message: Any) -> None:
        message = getattr(message, "root", message)  # SDK 1 wraps notifications
        if getattr(message, "method", None) == "notifications/tools/list_changed":
            on_change()

    patience = Patience(str(target))
    async with AsyncExitStack() as stack:
        transport: Any
        if isinstance(target, Stdio):
            parameters = StdioServerParameters(
                command=target.command[0],
                args=list(target.command[1:]),
                env=dict(target.env),
                cwd=target.cwd,
                encoding_error_handler="replace",  # invalid UTF-8 on stdout must not end the session
            )
            transport = stdio_client(parameters, errlog=errlog)
        else:
            library: Any = import_module(_HTTP)
            http = await stack.enter_async_context(
                library.AsyncClient(
                    headers=dict(target.headers),
                    auth=target.auth,
                    timeout=library.Timeout(**_TIMEOUT),
                    follow_redirects=MAJOR == 1,  # SDK 2 does it by itself, within the server's origin
                    transport=AsyncProxyTransport(_HTTP),
                )
            )

            async def note(response: Any) -> None:  # the SDK's error messages do not have the status
                if response.status_code >= 400:
                    print(f"HTTP {response.status_code} {response.reason_phrase}", file=errlog, flush=True)

            http.event_hooks = {"response": [note]}
            setattr(http, "send", patient(http.send, patience))  # noqa: B010 - a client of httpx, or of httpx2
            limits = "max_sse_event_size" in inspect.signature(streamable_http_client).parameters  # SDK 2.3 and later
            limit: dict[str, Any] = {"max_sse_event_size": MAX_EVENT} if limits else {}
            transport = streamable_http_client(target.url, http_client=http, **limit)
        transport = _filter_tools(transport)
        if MAJOR > 1:
            from mcp.client import Client

            client = await stack.enter_async_context(Client(transport, message_handler=handle_message))
            models = {"serverInfo": client.server_info, "capabilities": client.server_capabilities}
            info = {name: wire(model) for name, model in models.items() if model}
            instructions = {"instructions": client.instructions} if client.instructions else {}
            _leave_unchecked(client.session)
            yield Channel(client, {**info, **instructions}, patience)
        else:
            from mcp import ClientSession

            streams = await stack.enter_async_context(transport)
            session = await stack.enter_async_context(
                ClientSession(streams[0], streams[1], message_handler=handle_message)
            )
            _leave_unchecked(session)
            yield Channel(session, wire(await session.initialize()), patience)


def _leave_unchecked(session: Any) -> None:
    """Keeps the SDK from checking the structured content of results: `Channel` does."""

    async def skip_validation(name: str, result: Any) -> None:
        pass

    setattr(session, "validate_tool_result" if MAJOR > 1 else "_validate_tool_result", skip_validation)


@asynccontextmanager
async def _filter_tools(transport: Any) -> AsyncIterator[tuple[Any, ...]]:
    """A transport whose lists of tools have those that can be read."""
    async with transport as (read, *others):
        yield ToolFilter(read), *others


def wire(answer: BaseModel) -> dict[str, Any]:
    """Converts an object of SDK 1 or 2 to the protocol's JSON. Nulls inside schemas and structured content stay."""
    fields: dict[str, Any] = answer.model_dump(mode="json", by_alias=True, exclude_none=True)
    return fields


def failure_of(error: Exception) -> MCPError:
    """Converts an exception of the SDK to an MCPError. Its `failure` is "closed" if the connection is gone."""
    if isinstance(error, MCPError):
        return error
    data = getattr(error, "error", None)  # McpError of SDK 1, MCPError of SDK 2
    code = getattr(data, "code", None)
    closed_stream_errors = (anyio.ClosedResourceError, anyio.BrokenResourceError, anyio.EndOfStream, OSError)
    if (
        code == mcp.types.CONNECTION_CLOSED
        or isinstance(error, closed_stream_errors)
        or "ConnectError" in type(error).__name__
    ):
        return MCPError("the connection was closed", failure="closed", code=code)
    text = str(error) or type(error).__name__
    return MCPError(text if code is not None else f"{type(error).__name__}: {text}", code=code)
