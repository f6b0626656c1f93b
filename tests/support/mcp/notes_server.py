"""An MCP server for the tests: notes in a directory, which its argument or its environment names, and a memory."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from mcp.types import ToolAnnotations

try:
    from mcp.server import MCPServer
    from mcp.server.mcpserver.exceptions import ToolError
except ImportError:  # SDK 1, in an environment of its own
    from mcp.server.fastmcp import FastMCP as MCPServer
    from mcp.server.fastmcp.exceptions import ToolError

server = MCPServer("notes", log_level="CRITICAL")
HOME = Path(sys.argv[1] if len(sys.argv) > 1 else os.environ.get("NOTES", "."))
calls: list[str] = []
READS = ToolAnnotations.model_validate({"readOnlyHint": True})
WRITES = ToolAnnotations.model_validate({"readOnlyHint": False, "destructiveHint": False})


@server.tool(annotations=READS)
def list_notes() -> list[str]:
    """List the names of all notes."""
    return sorted(path.name for path in HOME.iterdir())


@server.tool(annotations=READS)
def list_paths() -> dict[str, Any]:
    """List the paths of all notes."""
    return {"paths": sorted(str(path.resolve()) for path in HOME.iterdir())}


@server.tool(annotations=READS)
def read_note(path: str) -> dict[str, Any]:
    """Read a note."""
    try:
        return {"path": str(Path(path).resolve()), "text": Path(path).read_text()}
    except OSError as error:
        raise ToolError(f"{path} cannot be read: {error.strerror}") from None


@server.tool(annotations=READS)
def get_process() -> dict[str, Any]:
    """Get the id of the process and its working directory."""
    return {"pid": os.getpid(), "directory": os.getcwd()}


@server.tool(annotations=READS)
def count_visits() -> int:
    """Count how often this was asked. It says that it only reads, and writes."""
    visits = HOME / "visits"
    visits.write_text(visits.read_text() + "." if visits.exists() else ".")
    return len(visits.read_text())


@server.tool(annotations=READS)
def get_crash() -> str:
    """End the server, although only reading was promised."""
    os._exit(1)


@server.tool(annotations=WRITES)
def write_note(path: str, text: str) -> str:
    """Write a note."""
    if Path(path).exists():
        raise ToolError(f"{path} is there already")
    Path(path).write_text(text)
    return f"written to {Path(path).resolve()}"


@server.tool(annotations=WRITES)
def sign_note(path: str) -> str:
    """Append the time to a note."""
    with Path(path).open("a") as note:
        note.write(f"{time.time_ns()}\n")
    return "signed"


@server.tool(annotations=WRITES)
def remember(text: str) -> int:
    """Remember a text, without writing it anywhere."""
    calls.append(text)
    return len(calls)


@server.tool(annotations=WRITES)
def make_draft() -> str:
    """Make a draft with a name that nobody has seen."""
    name = f"draft-{time.time_ns()}"
    (HOME / name).write_text("draft")
    return name


@server.tool(annotations=WRITES)
def crash() -> str:
    """End the server."""
    os._exit(1)


if __name__ == "__main__":
    server.run()
