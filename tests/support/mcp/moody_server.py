"""An MCP server for the tests that is slow, fails now and then, refuses calls, and remembers what it was told."""

from __future__ import annotations

import asyncio
from itertools import count
from typing import Any

try:
    from mcp.server import MCPServer
    from mcp.server.mcpserver.exceptions import ToolError
except ImportError:  # SDK 1, in an environment of its own
    from mcp.server.fastmcp import FastMCP as MCPServer
    from mcp.server.fastmcp.exceptions import ToolError

server = MCPServer("moody", log_level="CRITICAL")

PRICES = {"lamp": 20, "chair": 45, "shelf": 80, "stool": 15}
calls = count(1)
said: list[str] = []


@server.tool()
def list_products() -> list[str]:
    """The names of all products."""
    return list(PRICES)


@server.tool()
async def get_price(product: str) -> dict[str, Any]:
    """The price of a product."""
    number = next(calls)
    if number % 3 == 0:
        raise ToolError("429 Too Many Requests: try again in 20 ms")
    await asyncio.sleep(0.05)
    if product not in PRICES:
        raise ToolError(f"there is no product {product}")
    return {"product": product, "price": PRICES[product]}


@server.tool()
def get_refusal() -> str:
    """Never answers."""
    raise ToolError("rate limit exceeded, retry after 600 seconds")


@server.tool()
def say(word: str) -> str:
    """Remembers a word."""
    said.append(word)
    return "ok"


@server.tool()
def get_said() -> str:
    """All words that this server was told."""
    return " ".join(said)


if __name__ == "__main__":
    server.run()
