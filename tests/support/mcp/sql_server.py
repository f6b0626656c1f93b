"""An MCP server for the tests: SQL on the SQLite database that its argument names."""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing
from typing import Any

try:
    from mcp.server import MCPServer
    from mcp.server.mcpserver.exceptions import ToolError
except ImportError:  # SDK 1, in an environment of its own
    from mcp.server.fastmcp import FastMCP as MCPServer
    from mcp.server.fastmcp.exceptions import ToolError

server = MCPServer("rows", log_level="CRITICAL")


def run(sql: str) -> list[dict[str, Any]]:
    try:
        with closing(sqlite3.connect(sys.argv[1])) as database, database:
            cursor = database.execute(sql)
            names = [column[0] for column in cursor.description or ()]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
    except sqlite3.Error as error:
        raise ToolError(str(error)) from None


@server.tool()
def query_rows(sql: str) -> list[dict[str, Any]]:
    """Runs a SELECT statement of SQL."""
    if not sql.casefold().startswith("select"):
        raise ToolError("only SELECT")
    return run(sql)


@server.tool()
def change_rows(sql: str) -> str:
    """Runs an INSERT, UPDATE or DELETE statement of SQL."""
    run(sql)
    return "changed"


if __name__ == "__main__":
    server.run()
