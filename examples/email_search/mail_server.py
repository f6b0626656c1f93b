"""An MCP server over stdio with the tools of a mailbox: `python mail_server.py mailbox.sqlite`."""

from __future__ import annotations

import sys
from pathlib import Path

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

sys.path.insert(0, str(Path(__file__).parent))  # run as a script, from anywhere

import emails

server = MCPServer("mailbox", version="1.0.0", log_level="WARNING")


@server.tool()
def search(keywords: str) -> str:
    """Emails that have all keywords, newest first."""
    return emails.search(Path(sys.argv[1]), keywords)


@server.tool()
def read(email: int) -> str:
    """An email by its number."""
    try:
        return emails.read(Path(sys.argv[1]), email)
    except (LookupError, OverflowError) as error:
        raise ToolError(str(error)) from None


@server.tool()
def answer(text: str, source: int) -> str:
    """Answer the question. source: number of the email that says it."""
    return "The answer was given."


if __name__ == "__main__":
    server.run()
