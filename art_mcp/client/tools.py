"""MCP tools → LangChain tools."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from langchain_core.tools import BaseTool, ToolException

from art_mcp.client.result import CallResult

Call = Callable[[str, dict[str, Any]], Awaitable[CallResult]]


class MCPTool(BaseTool):
    """A tool of an MCP server. Asynchronous only, as the session is.

    The input schema stays as the server gave it. An error of the tool becomes a tool message with status "error", which
    the model sees; it does not end the graph. The structured content is the message's artifact.
    """

    call: Call
    response_format: Any = "content_and_artifact"
    handle_tool_error: Any = True

    # Positional-only and no named parameters: a tool may have arguments called `config` or `self`.
    async def _arun(self, /, **arguments: Any) -> tuple[str, Any]:
        result = await self.call(self.name, arguments)
        if result.is_error:
            raise ToolException(result.text)
        return result.text, result.structured

    def _run(self, /, **arguments: Any) -> tuple[str, Any]:
        raise NotImplementedError(f"{self.name} is a tool of an MCP server: run the graph with ainvoke or astream")


def as_langchain_tool(call: Call, tool: dict[str, Any]) -> BaseTool:
    """A LangChain tool that invokes an MCP tool (the protocol's JSON) through `call(name, arguments)`."""
    return MCPTool(
        name=tool["name"],
        description=tool.get("description") or tool.get("title") or tool["name"],
        args_schema=tool["inputSchema"],
        call=call,
        metadata={"mcp": True, **({"annotations": tool["annotations"]} if tool.get("annotations") else {})},
    )
