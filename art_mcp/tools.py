"""MCP tools → LangChain tools."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from langchain_core.tools import BaseTool, StructuredTool, ToolException

from art_mcp.capture import CallResult

Call = Callable[[str, dict[str, Any]], Awaitable[CallResult]]


def as_langchain_tool(call: Call, tool: Any) -> BaseTool:
    """A LangChain tool that invokes an MCP tool (`mcp_types.Tool`) through `call(name, arguments)`.

    The input schema stays as the server gave it. An error of the tool becomes a tool message with status "error", which
    the model sees; it does not end the graph.
    """

    async def invoke(**arguments: Any) -> tuple[str, Any]:
        result = await call(tool.name, arguments)
        if result.is_error:
            raise ToolException(result.text)
        return result.text, result.structured

    return StructuredTool(
        name=tool.name,
        description=tool.description or tool.name,
        args_schema=tool.input_schema,
        coroutine=invoke,
        response_format="content_and_artifact",
        handle_tool_error=True,
        metadata={"mcp": True},
    )
