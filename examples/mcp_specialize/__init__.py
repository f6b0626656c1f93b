"""`art_mcp.specialize` on MCP servers: the scenarios come from the servers, and nobody writes data."""
