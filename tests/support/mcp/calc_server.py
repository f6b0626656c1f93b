"""A calculator over MCP: its tools compute, and the names of most have no verb that says so."""

from __future__ import annotations

try:
    from mcp.server import MCPServer
    from mcp.server.mcpserver.exceptions import ToolError
except ImportError:  # SDK 1, in an environment of its own
    from mcp.server.fastmcp import FastMCP as MCPServer
    from mcp.server.fastmcp.exceptions import ToolError

server = MCPServer("calculator", log_level="CRITICAL")
SHADES = {"crimson": 348, "teal": 180, "ochre": 35}


@server.tool()
def mean(a: int, b: int) -> float:
    """The mean of two numbers."""
    return (a + b) / 2


@server.tool()
def factorial(n: int) -> int:
    """The factorial of a number."""
    if not 0 <= n <= 20:
        raise ToolError(f"n must be from 0 to 20, not {n}")
    product = 1
    for factor in range(2, n + 1):
        product *= factor
    return product


@server.tool()
def hue(shade: str) -> dict[str, int]:
    """The hue of a shade, in degrees."""
    if shade not in SHADES:
        raise ToolError(f"unknown shade {shade!r}; there are 'crimson', 'teal', 'ochre'")
    return {"degrees": SHADES[shade]}


@server.tool()
def shade_list() -> str:
    """List the shades."""
    return ",".join(SHADES)


if __name__ == "__main__":
    server.run()
