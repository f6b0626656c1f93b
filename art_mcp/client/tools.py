"""Converts MCP tools to LangChain tools."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from langchain_core.tools import BaseTool, ToolException

from art_mcp.client.result import CallResult
from art_mcp.input_schema import normal_schema

Call = Callable[[str, dict[str, Any]], Awaitable[CallResult]]
"""Calls a tool by its name with arguments, as `Server.call` does."""


class MCPTool(BaseTool):
    """A tool of an MCP server. It can only be called asynchronously, as sessions are asynchronous.

    The input schema says what the server's says, in the form of `normal_schema`, as the scenarios have it: engines make
    no grammar of a keyword that is null. An error of the tool becomes a tool message with status "error", which
    the model sees. It does not end the graph. The structured content is the artifact of the tool message.
    """

    call: Call
    response_format: Any = "content_and_artifact"
    handle_tool_error: Any = True

    # `self` is positional-only and no parameter has a name, because a tool may have arguments `config` or `self`.
    async def _arun(self, /, **arguments: Any) -> tuple[str, Any]:
        result = await self.call(self.name, arguments)
        if result.is_error:
            raise ToolException(result.text)
        return result.text, result.structured

    def _run(self, /, **arguments: Any) -> tuple[str, Any]:
        raise NotImplementedError(f"{self.name} is a tool of an MCP server: run the graph with ainvoke or astream")


def as_langchain_tool(call: Call, tool: dict[str, Any]) -> BaseTool:
    """Makes a LangChain tool of an MCP tool.

    Args:
        call: Calls the tool on its server.
        tool: The tool as the protocol's JSON.
    """
    return MCPTool(
        name=tool["name"],
        description=tool.get("description") or tool.get("title") or tool["name"],
        args_schema=normal_schema(tool["inputSchema"]),
        call=call,
        metadata={"mcp": True, **({"annotations": tool["annotations"]} if tool.get("annotations") else {})},
    )
