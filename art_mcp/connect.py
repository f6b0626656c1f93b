"""A session with an MCP server: any stdio command, or any streamable-HTTP URL."""

from __future__ import annotations

import asyncio
import shlex
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from langchain_core.tools import BaseTool
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters

from art_mcp.capture import CallResult, record
from art_mcp.tools import as_langchain_tool
from trainer_server.wire import MCPError

TIMEOUT = 30.0
"""Seconds for one answer of a server."""


class Server:
    """An open session. Many rollouts may use it at once."""

    def __init__(self, client: Client, timeout: float) -> None:
        self._client = client
        self._timeout = timeout
        info = client.server_info
        self.name = str(info.name) if info else "unknown"
        self.version = str(info.version) if info else ""

    async def call(self, tool: str, arguments: dict[str, Any]) -> CallResult:
        """Invokes a tool, and records it. What goes wrong is a result with `is_error`, never a hang or a crash."""
        started = time.time()
        try:
            async with asyncio.timeout(self._timeout):
                answer = await self._client.call_tool(tool, arguments)
        except TimeoutError:
            result = CallResult(f"{self.name} did not answer within {self._timeout:g} s", None, True)
        except Exception as error:  # the edge to a foreign process: whatever it does is an error of the tool
            result = CallResult(f"{type(error).__name__}: {error}", None, True)
        else:
            texts = [part.text if part.type == "text" else f"[{part.type}]" for part in answer.content]
            result = CallResult("\n".join(texts), answer.structured_content, bool(answer.is_error))
        record(self.name, tool, arguments, result, started)
        return result

    async def tools(self) -> list[BaseTool]:
        """The server's tools as LangChain tools, with their input schemas whole. Raises MCPError."""
        found: list[BaseTool] = []
        cursor: str | None = None
        try:
            async with asyncio.timeout(self._timeout):
                while True:
                    page = await self._client.list_tools(cursor=cursor)
                    found += [as_langchain_tool(self.call, tool) for tool in page.tools]
                    if not (cursor := page.next_cursor):
                        return found
        except TimeoutError:
            raise MCPError(f"{self.name} did not list its tools within {self._timeout:g} s") from None


@asynccontextmanager
async def connect(
    server: str | Sequence[str], *, env: Mapping[str, str] | None = None, timeout: float = TIMEOUT
) -> AsyncIterator[Server]:
    """Opens a session with an MCP server, and ends it, with its process, when the block is left.

    server: an http(s) URL, or a command as a string or a list. env: added to the environment of a command.
    timeout: seconds for each answer. Raises MCPError when the server cannot be started or reached.
    """
    target: str | StdioServerParameters
    if isinstance(server, str) and server.startswith(("http://", "https://")):
        target = server
    else:
        words = shlex.split(server) if isinstance(server, str) else list(server)
        if not words:
            raise MCPError("the command of the MCP server is empty")
        target = StdioServerParameters(command=words[0], args=words[1:], env=dict(env) if env else None)
    client = Client(target)
    try:
        async with asyncio.timeout(timeout):  # not wait_for: the session must be entered and left in one task
            await client.__aenter__()
    except TimeoutError:
        raise MCPError(f"the MCP server {server!r} did not answer within {timeout:g} s") from None
    except Exception as error:  # the edge to a foreign process or host
        raise MCPError(f"the MCP server {server!r} cannot be used: {_root(error)}") from error
    try:
        yield Server(client, timeout)
    finally:
        await client.__aexit__(None, None, None)


def _root(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"
