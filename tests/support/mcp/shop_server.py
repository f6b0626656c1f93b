"""A shop over MCP: values to find, calls that lead to one another, a clock, things that fail, destroy, or change."""

from __future__ import annotations

import time
from typing import Any, Literal

from mcp.types import ToolAnnotations

try:
    from mcp.server import MCPServer
    from mcp.server.mcpserver.exceptions import ToolError
except ImportError:  # SDK 1, in an environment of its own
    from mcp.server.fastmcp import FastMCP as MCPServer
    from mcp.server.fastmcp.exceptions import ToolError

server = MCPServer("shop", log_level="CRITICAL")
ITEMS = {"it-77": ("lamp", 20), "it-88": ("chair", 45), "it-99": ("shelf", 130)}
notes: list[str] = []


@server.tool()
def list_items() -> list[dict[str, Any]]:
    """Lists all items of the shop."""
    return [{"item_id": key, "name": name} for key, (name, _) in ITEMS.items()]


@server.tool()
def get_price(item_id: str) -> dict[str, Any]:
    """Gets the price of an item. It is in euros."""
    return {"price": ITEMS[item_id][1], "asked": time.time()}


@server.tool()
def convert_price(amount: int, currency: Literal["dollars", "yen"] = "yen") -> int:
    """Converts euros into another currency."""
    return amount * {"dollars": 2, "yen": 160}[currency]


@server.tool()
def get_clock() -> dict[str, Any]:
    """Tells what the clock in the shop shows."""
    return {"seconds": time.time(), "day": time.strftime("%A"), "shown": time.strftime("%H:%M:%S")}


@server.tool()
def find_ghost(name: str) -> list[str]:
    """Finds nothing."""
    return []


@server.tool()
def get_broken(name: str) -> str:
    """Fails always."""
    raise ToolError("out of order")


@server.tool()
def remove_item(item_id: str) -> str:
    """Removes an item."""
    raise ToolError(f"{item_id} was to be removed")


@server.tool(annotations=ToolAnnotations.model_validate({"readOnlyHint": False, "destructiveHint": False}))
def add_note(text: str) -> str:
    """Adds a note."""
    notes.append(text)
    if notes.count(text) > 1:
        raise ToolError("it is there already")
    return f"note-{len(notes)}"


if __name__ == "__main__":
    server.run()
