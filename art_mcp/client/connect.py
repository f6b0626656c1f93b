"""A connection with an MCP server: any stdio command, any streamable-HTTP URL, or a cassette of one."""

from __future__ import annotations

import shlex
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from langchain_core.tools import BaseTool

from art_mcp.client.capture import Record
from art_mcp.client.cassette import Cassette
from art_mcp.client.result import MAX_RESULT, CallResult
from art_mcp.client.sdk import Http, Stdio, Target
from art_mcp.client.session import Isolation, Live, Source
from art_mcp.client.tools import as_langchain_tool
from trainer_server.wire import ConfigError, MCPError

TIMEOUT = 30.0
"""Seconds for one answer of a server."""

START_TIMEOUT = 60.0
"""Seconds until a server introduces itself."""

MAX_PAGES = 1_000
"""Pages of one list: a server whose cursor never ends must not hold up anybody."""

METHOD_NOT_FOUND = -32601


class Server:
    """An MCP server that is connected. Many rollouts may use it at once."""

    def __init__(self, source: Source, info: Mapping[str, Any], max_result: int) -> None:
        self._source = source
        self._max_result = max_result
        self._tools: dict[str, dict[str, Any]] | None = None
        told = info.get("serverInfo") or {}
        self.name = str(told.get("name") or "unknown")
        self.version = str(told.get("version") or "")
        self.instructions = str(info.get("instructions") or "")
        self.capabilities: dict[str, Any] = dict(info.get("capabilities") or {})

    async def call(self, tool: str, arguments: dict[str, Any]) -> CallResult:
        """Invokes a tool, and records the call in the running trajectory.

        Args:
            tool: Name of the tool.
            arguments: Its arguments, as JSON values.

        Returns:
            The result. A call that fails gives a result with `is_error`, within the timeout; it raises nothing.
        """
        with Record(self.name, self.version, tool, arguments) as record:
            try:
                await self._still_has(tool)
                params = {"name": tool, "arguments": arguments}
                answer = await self._source.request("tools/call", params, record.progress)
                result = CallResult.of(answer, self._max_result)
            except MCPError as error:
                result = CallResult.failed(error, self.name)
            record.end(result)
            return result

    async def tools(self) -> list[BaseTool]:
        """The server's tools as LangChain tools, with their input schemas whole. Raises MCPError."""
        return [as_langchain_tool(self.call, tool) for tool in await self.listing("tools/list")]

    async def listing(self, method: str) -> list[dict[str, Any]]:
        """All entries of a list of the server, over all its pages.

        Args:
            method: `tools/list`, `resources/list`, `resources/templates/list` or `prompts/list`.

        Returns:
            The entries as the server gave them; none where it has no such list.

        Raises:
            MCPError: The server did not answer, or not properly.
        """
        kind = method.split("/")[0]
        if self.capabilities and kind not in self.capabilities:
            return []
        key = {"resources/templates/list": "resourceTemplates"}.get(method, kind)
        found: list[dict[str, Any]] = []
        params: dict[str, Any] = {}
        for _ in range(MAX_PAGES):
            try:
                page = await self._source.request(method, params)
            except MCPError as error:
                if error.code == METHOD_NOT_FOUND:  # of those that announce resources, some have no templates
                    return []
                raise
            found += page.get(key, ())
            if not page.get("nextCursor"):
                break
            params = {"cursor": page["nextCursor"]}
        if method == "tools/list":
            self._tools = {tool["name"]: tool for tool in found}
        return found

    async def read(self, uri: str) -> list[dict[str, Any]]:
        """Reads a resource.

        Args:
            uri: Of the resource.

        Returns:
            Its contents: `uri`, `mimeType`, and `text` or `blob` of each.

        Raises:
            MCPError: The server has no such resource, or did not answer.
        """
        answer = await self._source.request("resources/read", {"uri": uri})
        return list(answer.get("contents", ()))

    def tools_changed(self) -> None:
        """The server said that its tools are others now: the next call looks at them first."""
        self._tools = {}

    async def _still_has(self, tool: str) -> None:
        if self._tools == {}:  # changed since they were listed
            await self.listing("tools/list")
            if self._tools and tool not in self._tools:
                names = ", ".join(sorted(self._tools))
                raise MCPError(f"it has changed its tools, and {tool} is gone. Its tools are now: {names}")


@asynccontextmanager
async def connect(
    server: str | Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
    headers: Mapping[str, str] | None = None,
    auth: Any = None,
    timeout: float = TIMEOUT,
    start_timeout: float = START_TIMEOUT,
    isolation: Isolation = "shared",
    cassette: Cassette | None = None,
    max_result: int = MAX_RESULT,
) -> AsyncIterator[Server]:
    """Connects to an MCP server; its sessions end, with their processes, when the block is left.

    Args:
        server: An http(s) URL, or a command as a string or a list.
        env: Environment of a command, added to HOME, PATH and the few other names that the SDK passes on.
        cwd: Working directory of a command.
        headers: HTTP headers for a URL.
        auth: For a URL: what the SDK's HTTP client takes, such as its OAuthClientProvider.
        timeout: Seconds for each answer.
        start_timeout: Seconds until the server answers `initialize`, what `npx` or `uvx` downloads included.
        isolation: "shared" is one session for all. "session" is one for every rollout, for servers with a state: the
            first call of a rollout opens it, the end of the rollout closes it. Outside of `rollout` and `gather` all
            calls share one.
        cassette: Records the answers, or gives recorded ones. A replay needs no server.
        max_result: Characters of a result that are kept.

    Yields:
        The connected server.

    Raises:
        ConfigError: Options that do not go with the server, or an empty command.
        MCPError: The server cannot be started or reached.
    """
    target = target_of(server, env, cwd, headers, auth)
    live = Live(target, (start_timeout, timeout), isolation, lambda: connected.tools_changed())
    source: Source = cassette.over(live) if cassette else live
    try:
        connected = Server(source, await source.request("initialize", {}), max_result)
        yield connected
    finally:
        await source.close()


def target_of(
    server: str | Sequence[str],
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
    headers: Mapping[str, str] | None = None,
    auth: Any = None,
) -> Target:
    """Where a server is. Raises ConfigError for options that do not go with it, and for an empty command."""
    if isinstance(server, str) and server.startswith(("http://", "https://")):
        if env or cwd:
            raise ConfigError(f"env and cwd are for commands; {server!r} is a URL")
        return Http(server, dict(headers or {}), auth)
    if headers or auth:
        raise ConfigError(f"headers and auth are for URLs; {server!r} is a command")
    words = shlex.split(server) if isinstance(server, str) else list(server)
    if not words:
        raise ConfigError("the command of the MCP server is empty")
    return Stdio(tuple(words), dict(env or {}), cwd)
