"""An MCP server for the tests: adds, fails, hangs, crashes."""

from __future__ import annotations

import asyncio
import os

try:
    from mcp.server import MCPServer
    from mcp.server.mcpserver.exceptions import ToolError
except ImportError:  # SDK 1, in an environment of its own
    from mcp.server.fastmcp import FastMCP as MCPServer
    from mcp.server.fastmcp.exceptions import ToolError

server = MCPServer("tested", log_level="CRITICAL")


@server.tool()
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
def fail() -> str:
    """Fail."""
    raise ToolError("it failed")


@server.tool()
async def hang() -> str:
    """Answer late."""
    await asyncio.sleep(60)
    return "late"


@server.tool()
def crash() -> str:
    """End the server."""
    os._exit(1)


@server.tool()
def pid() -> str:
    """Process id of the server."""
    return str(os.getpid())


@server.resource("memo://first")
def first() -> str:
    """The first memo."""
    return "the beginning"


@server.resource("memo://{name}")
def memo(name: str) -> str:
    """A memo."""
    return name


@server.prompt()
def explain(topic: str) -> str:
    """Explain something."""
    return f"Explain {topic}."


if __name__ == "__main__":
    server.run()
