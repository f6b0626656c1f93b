"""An MCP server that keeps in memory what was opened: tables of a directory by an id, and one that is in use."""

from __future__ import annotations

import csv
import sys
import uuid
from pathlib import Path
from typing import Any

try:
    from mcp.server import MCPServer
    from mcp.server.mcpserver.exceptions import ToolError
except ImportError:  # SDK 1, in an environment of its own
    from mcp.server.fastmcp import FastMCP as MCPServer
    from mcp.server.fastmcp.exceptions import ToolError

directory = Path(sys.argv[1])
server = MCPServer("tables", log_level="CRITICAL")
tables: dict[str, list[dict[str, str]]] = {}
selection: list[list[dict[str, str]]] = []


def rows_of(file: str) -> list[dict[str, str]]:
    """The rows of a file."""
    path = directory / file
    if path.parent != directory or not path.is_file():
        raise ToolError(f"no file {file!r}. Available: {', '.join(sorted(one.name for one in directory.iterdir()))}")
    with path.open(newline="") as source:
        return list(csv.DictReader(source))


def table_of(table_id: str) -> list[dict[str, str]]:
    """An open table."""
    if table_id not in tables:
        raise ToolError(f"table {table_id!r} is not open")
    return tables[table_id]


@server.tool()
def open_table(file: str) -> dict[str, Any]:
    """Opens a table of the directory."""
    table_id = uuid.uuid4().hex[:12]
    tables[table_id] = rows_of(file)
    return {"table_id": table_id, "rows": len(tables[table_id]), "columns": list(tables[table_id][0])}


@server.tool()
def count_values(table_id: str, column: str) -> dict[str, int]:
    """Counts the different values of a column of an open table."""
    return {"values": len({row[column] for row in table_of(table_id)})}


@server.tool()
def largest_value(table_id: str, column: str) -> dict[str, str]:
    """Finds the largest value of a column of an open table."""
    return {"largest": max(row[column] for row in table_of(table_id))}


@server.tool()
def select_file(file: str) -> str:
    """Selects the file that `describe_selection` describes."""
    selection[:] = [rows_of(file)]
    return f"{file} is selected"


@server.tool()
def describe_selection() -> dict[str, Any]:
    """Describes the selected file."""
    if not selection:
        raise ToolError("no file is selected: call select_file first")
    return {"rows": len(selection[0]), "first_column": next(iter(selection[0][0]))}


if __name__ == "__main__":
    server.run()
