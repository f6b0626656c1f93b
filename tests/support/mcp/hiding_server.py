"""An MCP server for the tests whose SDK keeps exceptions to itself: only its stderr tells them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

server = MCPServer("hiding")
HOME = Path(sys.argv[1] if len(sys.argv) > 1 else ".")


@server.tool()
def get_weather(town: str) -> int:
    """The weather of a town."""
    return {"place": town}["city"]  # type: ignore[return-value]


@server.tool()
def get_file(name: str) -> str:
    """A file."""
    return (HOME / name).read_text()


@server.tool()
def get_session() -> str:
    """The session, with a key that this server was given."""
    raise RuntimeError(f"the key {os.environ['WEATHER_KEY']} is over")


@server.tool()
def get_reason() -> str:
    """Fails and says why, and writes to stderr meanwhile."""
    print("RuntimeError: something else", file=sys.stderr, flush=True)
    raise ToolError("no weather on Sundays")


if __name__ == "__main__":
    server.run()
