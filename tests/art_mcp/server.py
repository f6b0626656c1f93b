"""An MCP server for the tests: adds, fails, hangs, crashes."""

from __future__ import annotations

import os
import time

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

server = MCPServer("tested", version="1.2.3", log_level="CRITICAL")


@server.tool()
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
def fail() -> str:
    """Fail."""
    raise ToolError("it failed")


@server.tool()
def hang() -> str:
    """Answer late."""
    time.sleep(3)
    return "late"


@server.tool()
def crash() -> str:
    """End the server."""
    os._exit(1)


@server.tool()
def pid() -> str:
    """Process id of the server."""
    return str(os.getpid())


if __name__ == "__main__":
    server.run()
