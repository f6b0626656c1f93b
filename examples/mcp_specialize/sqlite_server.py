"""An MCP server over stdio that reads a SQLite database: `python sqlite_server.py shop.sqlite`."""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

server = MCPServer("sqlite", version="1.0.0", log_level="WARNING")


@server.tool()
def list_tables() -> list[str]:
    """Tables of the database."""
    return [row["name"] for row in _rows("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]


@server.tool()
def describe_table(table: str) -> list[dict[str, Any]]:
    """Columns of a table, with their types."""
    if table not in list_tables():
        raise ToolError(f"there is no table {table!r}")
    return [{"column": row["name"], "type": row["type"]} for row in _rows(f"PRAGMA table_info({table})")]


@server.tool()
def read_query(query: str) -> list[dict[str, Any]]:
    """Rows that a SELECT statement of SQL gives."""
    return _rows(query)


def _rows(query: str) -> list[dict[str, Any]]:
    """The rows of a statement. The database is opened to be read alone."""
    try:
        with closing(sqlite3.connect(f"{Path(sys.argv[1]).as_uri()}?mode=ro", uri=True)) as database:
            database.row_factory = sqlite3.Row
            return [dict(row) for row in database.execute(query).fetchmany(100)]
    except sqlite3.Error as error:
        raise ToolError(str(error)) from None


if __name__ == "__main__":
    server.run()
