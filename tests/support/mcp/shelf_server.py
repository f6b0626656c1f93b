"""An MCP server for the tests: a shelf of books with ids that nobody can guess."""

from __future__ import annotations

from typing import Any, Literal

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

server = MCPServer("shelf", log_level="CRITICAL")

BOOKS = {f"b{100 + 7 * at}": (f"Title {at}", "novel" if at % 2 else "atlas", 90 + 13 * at) for at in range(12)}


@server.tool()
def list_volumes(genre: Literal["novel", "atlas"]) -> dict[str, Any]:
    """List the books of a genre."""
    return {"books": [{"id": one, "title": title} for one, (title, kind, _) in BOOKS.items() if kind == genre]}


@server.tool()
def get_volume(book_id: str) -> dict[str, Any]:
    """Get title and pages of a book."""
    if book_id not in BOOKS:
        raise ToolError(f"no book {book_id}")
    title, kind, pages = BOOKS[book_id]
    return {"title": title, "genre": kind, "pages": pages}


@server.tool()
def delete_volume(book_id: str) -> str:
    """Throw a book away."""
    return f"{book_id} is gone"


if __name__ == "__main__":
    server.run()
