"""An MCP server for the tests that keeps its items in memory: it reads the file that its argument names when it starts.

A second argument says what else it does: `late` writes a log at its end.
"""

from __future__ import annotations

import sys
from pathlib import Path

try:
    from mcp.server import MCPServer
    from mcp.server.mcpserver.exceptions import ToolError
except ImportError:  # SDK 1, in an environment of its own
    from mcp.server.fastmcp import FastMCP as MCPServer
    from mcp.server.fastmcp.exceptions import ToolError

server = MCPServer("memory", log_level="CRITICAL")
FILE = Path(sys.argv[1])
items = FILE.read_text().split()
marks: list[str] = []


@server.tool()
def add_item(name: str) -> str:
    """Add an item, and write all that are in memory."""
    items.append(name)
    FILE.write_text("\n".join(items))
    return "added"


@server.tool()
def add_mark(name: str) -> str:
    """Append a mark to a file of its own, whatever is in memory."""
    marks.append(name)
    with FILE.with_name("marks").open("a") as file:
        file.write(f"{name}\n")
    return "marked"


@server.tool()
def undo_mark() -> str:
    """Take the last mark back, which memory alone knows."""
    if not marks:
        raise ToolError("there is nothing to take back")
    marks.pop()
    return "taken back"


if __name__ == "__main__":
    server.run()
    if "late" in sys.argv:
        FILE.with_name("log").write_text(f"{len(marks)} marks")
